//! Quotas of a month.

use limiter_testkit::server::Server as Redis;
use serde_json::{Value, json};

use crate::server::Server;

#[test]
fn a_quota_of_a_month_is_exact_and_its_log_stays_small() {
    let redis = Redis::start().unwrap();
    let config = "{domain: d, descriptors: [{key: user, rate_limit: {policy: 1000000/30d~1h}}]}";
    let server = Server::start(config, &["--store", &redis.url()]);
    let call = |operation: &str, cost: u64| {
        let call = json!({ "domain": "d", "descriptor": [["user", "ann"]], "cost": cost });
        server.post(&format!("/v1/{operation}"), &call.to_string()).1["allowed"] == Value::Bool(true)
    };
    assert!((0..499).all(|_| call("record", 2_000)));
    // One entry for each hour that the test meets.
    let entries = redis.command(&["ZCARD", "limiter:{d/user:ann}"]).unwrap().text();
    assert!(["1", "2"].contains(&&*entries), "{entries} entries");
    let acquired = [2_001, 1_999, 1, 1].map(|cost| call("acquire", cost));
    assert_eq!(acquired, [false, true, true, false]);
}
