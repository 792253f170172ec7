//! HTTP: Envoy's messages as JSON, bad input, and resets.

use std::thread;

use serde_json::{Value, json};

use crate::server::{Server, http, post};
use crate::table::rows;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

#[test]
fn envoys_messages_have_the_json_form_of_proto3() {
    let server = Server::start(CONFIG, &[]);
    let ask = |entry: &str, more: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        let body = format!(
            r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "{key}", "value": "{value}"}}]{more}}}]}}"#
        );
        server.post("/json", &body)
    };
    let (status, answer) = ask("user=ann", "");
    let limit = json!({ "name": "user", "requestsPerUnit": 3, "unit": "MINUTE" });
    let seen = json!({ "code": "OK", "currentLimit": limit, "limitRemaining": 2, "durationUntilReset": "60s" });
    let fields = json!([
        { "key": "ratelimit-policy", "value": "\"user\";q=3;w=60" },
        { "key": "ratelimit", "value": "\"user\";r=2;t=60" },
    ]);
    let expected =
        json!({ "overallCode": "OK", "statuses": [seen], "responseHeadersToAdd": fields });
    assert_eq!((status, answer), (200, expected));
    // Names of fields in either form, numbers as text, units by name or number. Unknown fields are refused by name, and numbers with
    // fractions.
    for (more, code, remaining) in [
        (r#", "hits_addend": "2""#, 200, Value::Null),
        (r#", "hitsAddend": 0"#, 429, Value::Null),
        (
            r#", "limit": {"requestsPerUnit": 9, "unit": "HOUR"}"#,
            200,
            json!(8),
        ),
        (r#", "unknown": [1]"#, 400, Value::Null),
        (
            r#", "hitsAddend": 2, "limit": {"requestsPerUnit": 9, "unit": 4}"#,
            200,
            json!(7),
        ),
        (r#", "hitsAddend": 2.0"#, 400, Value::Null),
        (r#", "hitsAddend": 2.5"#, 400, Value::Null),
        (r#", "limit": {"unit": 4.0}"#, 400, Value::Null),
        (
            r#", "limit": {"requests_per_unit": 9, "unit": 3}, "hitsAddend": null, "isNegativeHits": null"#,
            200,
            json!(7),
        ),
    ] {
        let (status, answer) = ask("user=ann", more);
        assert_eq!(
            (status, &answer["statuses"][0]["limitRemaining"]),
            (code, &remaining),
            "{more}: {answer}"
        );
    }
    // A null is a default, also among entries.
    let empty =
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": VALUE}]}]}"#;
    for (value, remaining) in [("\"\"", 2), ("null", 1)] {
        let answer = server.post("/json", &empty.replace("VALUE", value)).1;
        assert_eq!(answer["statuses"][0]["limitRemaining"], json!(remaining));
    }
    // Text keeps its fractions, so these are two keys.
    for value in [r#"user=\"2.0"#, r#"user=\"2"#] {
        assert_eq!(
            ask(value, "").1["statuses"][0]["limitRemaining"],
            json!(2),
            "{value}"
        );
    }
    let over = ask("user=ann", "").1;
    assert_eq!(
        (&over["overallCode"], &over["statuses"][0]["code"]),
        (&json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = Server::start(CONFIG, &[]);
    let long = "x".repeat((1 << 20) - 999);
    let large = format!(r#"{{"domain": "{}"}}"#, "x".repeat(5 << 20));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let lines = r#"
        json  => EOF while parsing
        json { => EOF while parsing
        json [] => expected an object
        json {"domain": 5} => expected a string
        json {"domain": null} => domain is empty
        json {"domain": "d"} => descriptors is empty
        json {"domain": "d", "descriptors": [{"entries": [["user", "x"]]}]} => expected an object
        json {"domain": "d", "descriptors": [{"limit": [1, "HOUR"]}]} => expected an object
        json {"domain": "d", "hitsAddend": 1.0} => expected a whole number
        json {"domain": "d", "hitsAddend": -1} => expected a whole number
        json {"domain": "d", "descriptors": [{"limit": {"unit": "CENTURY"}}]} => expected SECOND, MINUTE
        json {"domain": "d", "descriptors": [{"limit": {"unit": 77}}]} => limit.unit is 77, expected SECOND, MINUTE
        // The fields of a request stand for USER.
        v1/acquire  => EOF while parsing
        v1/acquire {USER, "cost": 1.0} => expected u64
        v1/reset {} => unknown variant `reset`
        v1/acquire {"domain": "d"} => missing field `descriptor`
        v1/acquire {"domain": "", "descriptor": [["a", "b"]]} => domain and descriptor: expected
        v1/acquire {"domain": "d", "descriptor": []} => domain and descriptor: expected
        v1/acquire {"domain": "d", "descriptor": [["a"]]} => invalid length 1
        v1/acquire ["d", [["user", "x"]], 1, null, null, null] => expected an object
        v1/acquire {USER, "costs": 1} => unknown field `costs`
        v1/acquire {USER, "cost": 0} => cost: expected at least 1
        v1/peek {"domain": "d", "descriptor": [["nobody", "x"]], "cost": 0} => cost: expected at least 1
        v1/acquire {USER, "cost": -1} => invalid value
        v1/record {USER, "cost": 18446744073709551616} => expected u64
        v1/acquire {USER, "wait_ms": 60001} => wait_ms: expected at most 60000
        v1/peek {USER, "id": "7"} => id: this operation has no such field
        v1/status {USER, "cost": 1} => cost: this operation has no such field
        v1/settle {USER, "cost": 1} => receipt: expected the receipt
        v1/settle {USER, "receipt": "x"} => cost: expected the actual cost
    "#;
    let user = r#""domain": "d", "descriptor": [["user", "x"]]"#;
    let id = "00000000000000000000000000000007";
    let one = "00000000000001";
    let receipts = [
        "",
        "--",
        "😀-1-1",
        id,
        &format!("{id}-{one}"),
        &format!("{id}-{one}-{}", "0".repeat(14)),
        &format!("{id}-+{}-{one}", &one[1..]),
        &format!("{id}-{one}-{one}-{one}"),
        &format!("{id}-20000000000000-{one}"),
        &format!("{id}0-{one}-{one}"),
        &format!("{}-{one}-{one}", "G".repeat(32)),
        &format!("{id}-{one}-{}", "f".repeat(99)),
        // Cut off.
        &format!("{id}-{one}-{}", &one[1..]),
        &format!("{id}-1-1"),
    ]
    .map(|receipt| format!(r#"{{USER, "receipt": "{receipt}"}}"#));
    let receipts = receipts
        .iter()
        .map(|body| ("v1/refund", &**body, "receipt: expected the receipt"));
    let lines = rows(lines).map(|(request, text)| {
        let (path, body) = request.split_once(' ').unwrap_or((request, ""));
        (path, body, text)
    });
    let others = [
        ("json", "\u{0}\u{1}", "expected value"),
        ("json", &*deep, "expected an object"),
        ("json", &*large, "at most 1048576 bytes"),
    ];
    for (path, body, text) in lines.chain(receipts).chain(others) {
        let (status, answer) = server.post(&format!("/{path}"), &body.replace("USER", user));
        let shown: String = body.chars().take(100).collect();
        let expected = if body == large { 413 } else { 400 };
        assert_eq!(status, expected, "{path} {shown}: {answer}");
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains(text), "{path} {shown}: {answer}");
    }
    let body = format!(r#"{{{user}, "receipt": "{id}-1fffffffffffff-{one}"}}"#);
    assert_eq!(server.post("/v1/refund", &body).1["applied"], json!(false));
    // A key of 1 MB is a key.
    let body = format!(
        r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "user", "value": "{long}"}}]}}]}}"#
    );
    let statuses = [(); 4].map(|()| server.post("/json", &body).0);
    assert_eq!(statuses, [200, 200, 200, 429]);
    for (request, status) in [
        ("GET /healthz HTTP/1.0\r\n\r\n", 200),
        ("GET / HTTP/9.9\r\n\r\n", 400),
        ("\u{1}\u{2}\u{3}\r\n\r\n", 400),
    ] {
        assert_eq!(http(server.http, request).0, status, "{request:?}");
    }
    let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {long}\r\n\r\n");
    assert_eq!(http(server.http, &head).0, 431);
    assert_eq!(
        server.metric(r#"limiter_server_errors_total{interface="json",kind="invalid"}"#),
        Some(3.0)
    );
}

#[test]
fn a_megabyte_of_any_character_is_read_in_one_pass() {
    let server = Server::start(CONFIG, &[]);
    let before = [
        "",
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": ""#,
        r#"{"domain": "d", "descriptor": [["user", ""#,
        r#"{"hitsAddend": "#,
        r#"{"cost": 1."#,
        r#"{"domain": "d", "descriptor": "#,
        r#"{"domain": "d", "descriptor": [["user", "x"]]}"#,
    ];
    let repeated = [
        "0", ".0", "-", "[", "{", "[[],", "\"", "\\", "\\u0030", ",", ":", " ", "a", "é", "😀",
        "\0",
    ];
    let bodies: Vec<String> = before
        .iter()
        .flat_map(|before| repeated.map(|text| (*before, text)))
        .map(|(before, text)| {
            before.to_owned() + &text.repeat(((1 << 20) - before.len()) / text.len())
        })
        .collect();
    let header = [
        ("content-type", "application/json"),
        ("x-limiter-admin", "1"),
    ];
    // The budget of a listener admits one such body at a time.
    let of_http = [(server.http, "/json"), (server.http, "/v1/acquire")];
    let listeners = [&of_http[..], &[(server.admin, "/reset")]];
    // A pass over each byte for each byte would take minutes a body, so the answer would not come.
    thread::scope(|scope| {
        for endpoints in listeners {
            let bodies = &bodies;
            scope.spawn(move || {
                for (body, (to, path)) in bodies
                    .iter()
                    .flat_map(|body| endpoints.iter().map(move |to| (body, to)))
                {
                    let status = post(*to, path, &header, body).0;
                    assert!(
                        matches!(status, 200 | 400),
                        "{path} {}: {status}",
                        body.chars().take(60).collect::<String>()
                    );
                }
            });
        }
    });
}

#[test]
fn resets_are_guarded_and_unblock_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let open = Server::start(CONFIG, &[]);
    let guarded = Server::start(CONFIG, &["--admin-token-file", token.to_str().unwrap()]);
    let beyond = Server::start(CONFIG, &["--admin", "0.0.0.0:0", "--admin-plain"]);
    let by_position = r#"["d", "user", "ann"]"#.to_owned();
    let [ann, nobody] = ["user", "nobody"]
        .map(|path| json!({ "domain": "d", "path": path, "key": "ann" }).to_string());
    let header = ("x-limiter-admin", "1");
    let bearer = ("authorization", "Bearer secret");
    let three = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": 3}]}"#;
    assert_eq!(
        [open.post("/json", three).0, open.post("/json", three).0],
        [200, 429]
    );
    // The guard has its own tests.
    for (server, headers, body, expected) in [
        (&open, vec![], &ann, 403),
        (&guarded, vec![header], &ann, 401),
        (&guarded, vec![header, bearer], &ann, 200),
        (&beyond, vec![header, bearer], &ann, 403),
        (&open, vec![header], &nobody, 404),
        (&open, vec![header], &by_position, 400),
    ] {
        let to = ([127, 0, 0, 1], server.admin.port()).into();
        let (status, answer) = post(to, "/reset", &headers, body);
        assert_eq!(status, expected, "{headers:?}: {answer}");
    }
    assert_eq!(
        post(open.admin, "/reset", &[header], &ann).1,
        json!({ "existed": true })
    );
    assert!(open.admin("/page/state").contains(r#""denied":[]"#));
    assert_eq!(open.post("/json", three).0, 200);
    // There is no way to reset on the other listeners.
    assert_eq!(post(open.http, "/reset", &[header], &ann).0, 404);
}

#[test]
fn different_values_have_different_labels_whatever_they_contain() {
    let below = "descriptors: [{key: l, detailed_metric: true}]";
    let rule =
        format!("{{key: k, detailed_metric: true, rate_limit: {{unlimited: true}}, {below}}}");
    let lines = r#"{key: "a\nb", value: "\u001b[31m", rate_limit: {unlimited: true}}"#;
    let rules = format!("{{domain: d, descriptors: [{rule}, {lines}]}}");
    let server = Server::start(&rules, &[]);
    let shown = server.admin("/rlconfig");
    assert_eq!(shown.lines().last(), Some("d.a\\nb=\\u{1b}[31m: unlimited"));
    let values: &[&[(&str, &str)]] = &[
        &[("k", "\\"), ("l", "")],
        &[("k", ",l=")],
        &[("k", "a\\b")],
        &[("k", "a\\\\b")],
        &[("k", "\0\r\n\"\u{7f}")],
        &[("k", "\\0")],
    ];
    for descriptor in values {
        let body = json!({ "domain": "d", "descriptor": descriptor }).to_string();
        assert_eq!(server.post("/v1/acquire", &body).0, 200);
    }
    let text = server.admin("/metrics");
    let detailed = text
        .lines()
        .filter(|line| line.starts_with("limiter_server_detailed_decisions_total{"));
    assert_eq!(
        detailed
            .filter(|line| line.ends_with(r#"outcome="allowed"} 1"#))
            .count(),
        values.len(),
        "{text}"
    );
    assert!(
        !text.contains(|char: char| char.is_control() && char != '\n'),
        "{text:?}"
    );
}

#[test]
fn one_request_does_not_bring_the_hits_to_their_maximum() {
    let server = Server::start(CONFIG, &[]);
    let hits = || server.metric(r#"limiter_server_hits_total{domain="d",rule="user"}"#);
    for (cost, sum) in [(u64::MAX, 4_294_967_295.0), (3, 4_294_967_298.0)] {
        let body = json!({ "domain": "d", "descriptor": [["user", "ann"]], "cost": cost });
        assert_eq!(server.post("/v1/acquire", &body.to_string()).0, 200);
        assert_eq!(hits(), Some(sum));
    }
}

#[test]
fn rules_are_listed_with_their_counts() {
    let server = Server::start(&format!("{CONFIG}    quota_mode: true"), &[]);
    thread::scope(|scope| {
        for _ in 0..4 {
            let body = r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#;
            scope.spawn(|| assert_eq!(server.post("/v1/acquire", body).0, 200));
        }
    });
    let rules: Value = serde_json::from_str(&server.admin("/rules")).unwrap();
    let position = format!("{}:4:5", server.config().display());
    let expected = json!({
        "domain": "d", "path": "user", "name": null, "where": position, "effect": "limit", "limits": ["3/1m"], "attempts": false,
        "shadow": false, "quota": true, "held_in_blocks": 0, "allowed": 3, "denied": 1, "shadow_denied": 0,
    });
    assert_eq!(rules["rules"][0], expected);
}
