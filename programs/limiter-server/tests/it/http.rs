//! HTTP: Envoy's messages as JSON, bad input, and resets.

use std::sync::Arc;
use std::thread;

use limiter_memory::MemoryStore;
use limiter_server::service::{Headers, MAX_DESCRIPTORS};
use serde_json::json;

use crate::answers::Fixture;
use crate::ask::{Answers, parsed};
use crate::client::{http, post};
use crate::server::Server;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

fn fixture() -> Fixture {
    Fixture::new(CONFIG, Arc::new(MemoryStore::new()), Headers::default())
}

#[tokio::test]
async fn envoys_messages_have_the_json_form_of_proto3() {
    let first = json!({
        "overallCode": "OK",
        "statuses": [{
            "code": "OK", "currentLimit": { "name": "user", "requestsPerUnit": 3, "unit": "MINUTE" }, "limitRemaining": 2,
            "durationUntilReset": "60s",
        }],
        "responseHeadersToAdd": [
            { "key": "ratelimit-policy", "value": "\"user\";q=3;w=60" },
            { "key": "ratelimit", "value": "\"user\";r=2;t=60" },
        ],
    });
    let body = |entry: &str, more: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        format!(
            r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "{key}", "value": {value}}}]{more}}}]}}"#
        )
    };
    let fixture = fixture();
    let answer = fixture.answer("/json", &body("user=\"ann\"", "")).await;
    assert_eq!(answer, (200, first));
    // Names of fields in either form, numbers as text, units by name or number. Unknown fields are refused by name, and numbers with
    // fractions. A null is a default, also among entries. Text keeps its fractions.
    let lines = r#"
        user="ann", "hits_addend": "2" => OK | OK user 3/MINUTE 0 60s
        user="ann", "hitsAddend": 0 => OVER | OVER user 3/MINUTE 0 60s
        user="ann", "limit": {"requestsPerUnit": 9, "unit": "HOUR"} => OK | OK user 9/HOUR 8 3600s
        user="ann", "unknown": [1] => 400 unknown field `unknown`
        user="ann", "hitsAddend": 2, "limit": {"requestsPerUnit": 9, "unit": 4} => OK | OK user 9/DAY 7 86400s
        user="ann", "hitsAddend": 2.0 => 400 expected a whole number
        user="ann", "hitsAddend": 2.5 => 400 expected a whole number
        user="ann", "limit": {"unit": 4.0} => 400 expected SECOND, MINUTE
        user="ann", "limit": {"requests_per_unit": 9, "unit": 3}, "hitsAddend": null, "isNegativeHits": null => OK | OK user 9/HOUR 7 3600s
        user="" => OK | OK user 3/MINUTE 2 60s
        user=null => OK | OK user 3/MINUTE 1 60s
        user="\"2.0" => OK | OK user 3/MINUTE 2 60s
        user="\"2" => OK | OK user 3/MINUTE 2 60s
        user="ann" => OVER | OVER user 3/MINUTE 0 60s
    "#;
    for (asked, expected) in crate::ask::rows(lines) {
        let (entry, more) = asked
            .find(", ")
            .map_or((asked, ""), |end| asked.split_at(end));
        let line = format!("/json {} => {expected}", body(entry, more));
        fixture.check(&line).await;
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let lines = r#"
        /json  => 400 EOF while parsing
        /json { => 400 EOF while parsing
        /json [] => 400 expected an object
        /json {"domain": 5} => 400 expected a string
        /json {"domain": null} => 400 domain is empty, expected the name of a domain
        /json {"domain": "d"} => 400 descriptors is empty, expected at least one
        MORE => 400 1001 descriptors, expected at most 1000
        MOST => {"overallCode": "OK"}
        user=ann & user=bob @1/0 => 400 descriptors[1].limit.unit is 0, expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
        user=ann - => 400 descriptors[0].is_negative_hits: not supported; POST a receipt to /v1/refund instead
        /json {"domain": "d", "descriptors": [{"entries": [["user", "x"]]}]} => 400 expected an object
        /json {"domain": "d", "descriptors": [{"limit": [1, "HOUR"]}]} => 400 expected an object
        /json {"domain": "d", "hitsAddend": 1.0} => 400 expected a whole number
        /json {"domain": "d", "hitsAddend": -1} => 400 expected a whole number
        /json {"domain": "d", "descriptors": [{"limit": {"unit": "CENTURY"}}]} => 400 expected SECOND, MINUTE
        /json {"domain": "d", "descriptors": [{"limit": {"unit": 77}}]} => 400 limit.unit is 77, expected SECOND, MINUTE
        /json DEEP => 400 expected an object
        /json LARGE => 413 at most 1048576 bytes
        /json x => 400 expected value
        /v1/acquire  => 400 EOF while parsing
        acquire user=x {"cost": 1.5} => 400 1.5, expected a whole number
        /v1/reset {} => 400 unknown variant `reset`
        /v1/acquire {"domain": "d"} => 400 missing field `descriptor`
        /v1/acquire {"domain": "", "descriptor": [["a", "b"]]} => 400 domain and descriptor: expected
        /v1/acquire {"domain": "d", "descriptor": []} => 400 domain and descriptor: expected
        /v1/acquire {"domain": "d", "descriptor": [["a"]]} => 400 invalid length 1
        /v1/acquire ["d", [["user", "x"]], 1, null, null, null] => 400 expected an object
        acquire user=x {"costs": 1} => 400 unknown field `costs`
        acquire user=x {"cost": 0} => 400 cost: expected at least 1
        peek nobody=x {"cost": 0} => 400 cost: expected at least 1
        acquire user=x {"cost": -1} => 400 -1, expected a whole number
        /v1/record {"domain": "d", "descriptor": [["user", "x"]], "cost": 18446744073709551616} => 400 expected a whole number
        acquire user=x {"wait_ms": 60001} => 400 wait_ms: expected at most 60000
        acquire user=x {"wait_ms": 60001.0, "cost": 1.0} => 400 wait_ms: expected at most 60000
        /v1/acquire_all {"domain": "", "calls": [{"descriptor": [["user", "x"]]}]} => 400 domain: expected a domain
        peek user=x {"id": "7"} => 400 id: this operation has no such field
        status user=x {"cost": 1} => 400 cost: this operation has no such field
        settle user=x {"cost": 1} => 400 receipt: expected the receipt
        settle user=x {"receipt": "x"} => 400 cost: expected the actual cost
        refund user=x {"receipt": "ID-1fffffffffffff-ONE"} => {"applied": false}
        // A key of 1 MB is a key.
        user=LONG +3 => OK | OK user 3/MINUTE 0 60s
        user=LONG => OVER | OVER user 3/MINUTE 0 60s
    "#;
    let id = "00000000000000000000000000000007";
    let one = "00000000000001";
    // The last ones are cut off.
    let receipts = "||--|😀-1-1|ID|ID-ONE|ID-ONE-00000000000000|ID-+0000000000001-ONE|ID-ONE-ONE-ONE|ID-20000000000000-ONE|ID0-ONE-ONE|\
                    GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG-ONE-ONE|ID-ONE-ffffffffffffffffffffffffffffffff|ID-ONE-0000000000001|ID-1-1";
    let refused = receipts.split('|').map(|receipt| {
        format!(
            "refund user=x {{\"receipt\": \"{receipt}\"}} => 400 receipt: expected the receipt\n"
        )
    });
    let lines = refused.collect::<String>() + lines;
    let many = |count| vec!["nobody=x"; count].join(" & ");
    let lines = lines.replace("MORE", &many(MAX_DESCRIPTORS + 1));
    let lines = lines.replace("MOST", &many(MAX_DESCRIPTORS));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let large = format!(r#"{{"domain": "{}"}}"#, "x".repeat(5 << 20));
    let [lines, long] = [lines.replace("DEEP", &deep), "x".repeat((1 << 20) - 999)];
    let lines = lines.replace("LARGE", &large).replace("LONG", &long);
    let lines = lines.replace("ID", id).replace("ONE", one);
    fixture().check(&lines).await;

    let server = Server::start(CONFIG, &[]);
    let long = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {long}");
    for (request, status) in [
        ("GET /healthz HTTP/1.0", 200),
        ("GET / HTTP/9.9", 400),
        ("\u{1}\u{2}\u{3}", 400),
        (&long, 431),
    ] {
        let found = http(server.http, &format!("{request}\r\n\r\n")).0;
        assert_eq!(found, status, "{:?}", request.get(..30));
    }
    for _ in 0..3 {
        server.post("/json", "{\"domain\": \"d\"}");
    }
    let invalid = r#"limiter_server_errors_total{interface="json",kind="invalid"}"#;
    assert_eq!(server.metric(invalid), Some(3.0));
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
    let full = |(before, text): (&str, &str)| {
        before.to_owned() + &text.repeat(((1 << 20) - before.len()) / text.len())
    };
    let starts = before.iter();
    let bodies: Vec<String> = starts
        .flat_map(|before| repeated.map(|text| full((before, text))))
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
                for body in bodies {
                    for (to, path) in endpoints {
                        let status = post(*to, path, &header, body).0;
                        let shown = || body.chars().take(60).collect::<String>();
                        assert!(matches!(status, 200 | 400), "{path} {}: {status}", shown());
                    }
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
    let asked = [(); 4].map(|()| open.ask("user", "ann"));
    assert_eq!(asked, [200, 200, 200, 429]);
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
    assert_eq!(open.reset("user", "ann").1, json!({ "existed": true }));
    assert!(open.admin("/page/state").contains(r#""denied":[]"#));
    assert_eq!(open.ask("user", "ann"), 200);
    // There is no way to reset on the other listeners.
    assert_eq!(post(open.http, "/reset", &[header], &ann).0, 404);
}

#[test]
fn different_values_have_different_labels_whatever_they_contain() {
    let below = "descriptors: [{key: l, detailed_metric: true}]";
    let rule =
        format!("{{key: k, detailed_metric: true, rate_limit: {{unlimited: true}}, {below}}}");
    let server = Server::start(&format!("{{domain: d, descriptors: [{rule}]}}"), &[]);
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
    let is_allowed = |line: &&str| {
        line.starts_with("limiter_server_detailed_decisions_total{")
            && line.ends_with(r#"outcome="allowed"} 1"#)
    };
    assert_eq!(
        text.lines().filter(is_allowed).count(),
        values.len(),
        "{text}"
    );
    let is_control = |char: char| char.is_control() && char != '\n';
    assert!(!text.contains(is_control), "{text:?}");
}

#[test]
fn rules_are_listed_with_their_counts() {
    let server = Server::start(&format!("{CONFIG}    quota_mode: true"), &[]);
    for _ in 0..4 {
        server.ask("user", "ann");
    }
    let rules = parsed(&server.admin("/rules"));
    let position = format!("{}:4:5", server.config().display());
    let expected = json!({
        "domain": "d", "path": "user", "name": null, "where": position, "effect": "limit", "limits": ["3/1m"], "attempts": false,
        "shadow": false, "quota": true, "held_in_blocks": 0, "allowed": 3, "denied": 1, "shadow_denied": 0,
    });
    assert_eq!(rules["rules"][0], expected);
}

/// It would add a line to a log, and change a terminal's colours.
const KEY: &str = "ann\\nINFO \\u001b[31m";

#[tokio::test]
async fn each_reset_settlement_and_refund_is_logged_with_its_client() {
    const CONFIG: &str =
        "{domain: d, descriptors: [{key: user, rate_limit: {policy: '9/1m, 20/1h'}}]}";
    let lines = r#"
        /v1/acquire {USER, "cost": 5} => {"receipt": "$receipt"}
        /v1/settle {USER, "receipt": "$receipt", "cost": 2} => {"applied": true}
        /v1/refund {USER, "receipt": "$receipt"} => {"applied": true}
        // It changes nothing.
        /v1/refund {USER, "receipt": "$receipt"} => {"applied": false}
        /v1/acquire {USER, "cost": 4} => {"allowed": true}
    "#;
    let user = format!(r#""domain": "d", "descriptor": [["user", "{KEY}"]]"#);
    let server = Server::start(CONFIG, &[]);
    server.check(&lines.replace("USER", &user)).await;
    let key = parsed(&format!("\"{KEY}\""));
    for _ in 0..2 {
        server.reset("user", key.as_str().unwrap());
    }
    let of = r#"domain="d" rule="user" key="ann\nINFO \u{1b}[31m" client="127.0.0.1""#;
    for (change, fields) in [
        ("settle", "cost_before=5 cost=2"),
        ("refund", "removed=2"),
        ("reset", r#"removed="4 in 1m, 4 in 1h""#),
        ("reset", r#"removed="""#),
    ] {
        assert_eq!(
            server.logged(&format!("{change} {of} {fields}")),
            1,
            "{change} {fields}"
        );
    }
    assert_eq!(server.logged("limiter_server::changes"), 4);
}
