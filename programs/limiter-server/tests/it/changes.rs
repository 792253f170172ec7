//! The log of changes to counts.

use serde_json::{Value, json};

use crate::server::{Server, post};

const CONFIG: &str = "{domain: d, descriptors: [{key: user, rate_limit: {policy: '9/1m, 20/1h'}}]}";
/// It would add a line to a log, and change a terminal's colours.
const KEY: &str = "ann\nINFO \u{1b}[31m";

/// Acquires five units, settles them for two, refunds them, acquires four, and resets the key.
fn change(server: &Server) {
    let call = |op: &str, fields: Value| {
        let mut body = json!({ "domain": "d", "descriptor": [["user", KEY]] });
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        server.post(&format!("/v1/{op}"), &body.to_string()).1
    };
    let receipt = call("acquire", json!({ "cost": 5 }))["receipt"].clone();
    call("settle", json!({ "receipt": receipt, "cost": 2 }));
    // The second changes nothing.
    for applied in [true, false] {
        let refunded = call("refund", json!({ "receipt": receipt }));
        assert_eq!(refunded["applied"], applied);
    }
    call("acquire", json!({ "cost": 4 }));
    let reset = json!({ "domain": "d", "path": "user", "key": KEY }).to_string();
    for _ in 0..2 {
        post(server.admin, "/reset", &[("x-limiter-admin", "1")], &reset);
    }
}

#[test]
fn each_reset_settlement_and_refund_is_logged_with_its_client() {
    let server = Server::start(CONFIG, &["--log-format", "json"]);
    change(&server);
    server.until_logged("\"removed\":\"\"");
    let lines = server.lines();
    let lines = lines
        .iter()
        .filter(|line| line.contains("limiter_server::changes"));
    let fields = |line: &String| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let line = line.as_object_mut().unwrap();
        line.retain(|name, _| name != "timestamp" && name != "target");
        Value::Object(line.clone())
    };
    let found: Vec<_> = lines.map(fields).collect();
    let all = |message: &str, more: Value| {
        let mut line = json!({
            "level": "INFO", "message": message, "domain": "d", "rule": "user", "key": KEY, "client": "127.0.0.1",
        });
        line.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        line
    };
    let expected = [
        all("settle", json!({ "cost_before": 5, "cost": 2 })),
        all("refund", json!({ "removed": 2 })),
        all("reset", json!({ "removed": "4 in 1m, 4 in 1h" })),
        all("reset", json!({ "removed": "" })),
    ];
    assert_eq!(found, expected);

    let server = Server::start(CONFIG, &[]);
    change(&server);
    server.until_logged("removed=\"\"");
    let line =
        r#"refund domain="d" rule="user" key="ann\nINFO \u{1b}[31m" client="127.0.0.1" removed=2"#;
    assert_eq!(server.logged(line), 1, "{:?}", server.lines());
}
