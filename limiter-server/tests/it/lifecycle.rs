//! Start and stop.

use crate::server::{Server, until};

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

#[test]
fn a_changed_configuration_applies_and_a_wrong_one_does_not() {
    let server = Server::start(CONFIG, &[]);
    let request = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    let statuses = |count: u32| (0..count).map(|_| server.post("/json", request).0).collect::<Vec<u16>>();
    let reloads = |result: &str| server.metric(&format!("limiter_server_config_reloads_total{{result=\"{result}\"}}"));
    let valid = || server.metric("limiter_server_config_valid");
    assert_eq!((statuses(4), valid()), (vec![200, 200, 200, 429], Some(1.0)));

    std::fs::write(server.config(), CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 5")).unwrap();
    until("the change applies", || reloads("applied"));
    assert_eq!(statuses(3), [200, 200, 429]);

    std::fs::write(server.config(), CONFIG.replace("minute", "fortnight")).unwrap();
    until("the error is seen", || valid().filter(|valid| *valid == 0.0));
    assert_eq!((statuses(1), reloads("applied")), (vec![429], Some(1.0)));
    assert!(reloads("refused").is_some());

    std::fs::write(server.config(), CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 6")).unwrap();
    until("the correction applies", || reloads("applied").filter(|count| *count == 2.0));
    assert_eq!((statuses(2), valid()), (vec![200, 429], Some(1.0)));

    server.signal("HUP");
    until("SIGHUP reloads", || reloads("applied").filter(|count| *count == 3.0));
    assert_eq!(statuses(1), [429]);
}
