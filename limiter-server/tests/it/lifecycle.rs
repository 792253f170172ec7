//! Start and stop.

use crate::server::Server;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

#[test]
fn it_serves_until_it_is_told_to_stop() {
    let mut server = Server::start(CONFIG, &[]);
    let request = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    let statuses: Vec<u16> = (0..4).map(|_| server.post("/json", request).0).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(server.metric(r#"limiter_server_decisions_total{domain="d",rule="user",outcome="allowed"}"#), Some(3.0));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}
