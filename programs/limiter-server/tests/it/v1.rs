//! `/v1` against every row of the tables in `docs/v1.md`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use limiter_memory::MemoryStore;
use limiter_server::rules::RuleSet;
use limiter_server::service::Headers;
use serde_json::{Value, json};
use testbed::server::Server as Redis;
use tokio::time::timeout;

use crate::answers::Fixture;
use crate::ask::{Answers, assert_has, parsed};
use crate::client::{PATIENCE, http, post, until};
use crate::server::Server;

const DOC: &str = include_str!("../../docs/v1.md");

/// Returns the cells of the table whose head begins like this, without backquotes.
pub(crate) fn rows(head: &str) -> Vec<Vec<String>> {
    let table = DOC
        .lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().replace('`', ""))
            .collect()
    };
    table.map(cells).collect()
}

/// Asserts that an object has the fields of a table, with their types, and returns the null fields.
fn assert_fields(head: &str, object: &Value) -> BTreeSet<String> {
    let types: BTreeMap<String, String> = rows(head)
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let fields = object.as_object().unwrap_or_else(|| panic!("{object}"));
    assert!(
        fields
            .keys()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .eq(types.keys()),
        "{object}"
    );
    for (name, value) in fields {
        let found = match value {
            Value::Null => continue,
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_u64() => "integer",
            Value::String(_) => "text",
            Value::Array(_) => "list",
            _ => "other",
        };
        assert_eq!(types[name], found, "{name}: {object}");
    }
    fields
        .iter()
        .filter(|(_, value)| value.is_null())
        .map(|(name, _)| name.clone())
        .collect()
}

/// Asserts that a decision has exactly the fields of the tables, and that the fields are null that the tables list as null.
pub(crate) fn assert_decision(op: &str, answer: &Value) {
    let null = assert_fields("| field | type ", answer);
    let is = |name: &str| !null.contains(name);
    assert_eq!(answer["op"], *op);
    assert_eq!(is("key"), is("rule"), "{answer}");
    let has_cost = !matches!(op, "status" | "refund" | "renew");
    assert_eq!(is("cost"), has_cost, "{answer}");
    assert_eq!(
        is("allowed"),
        matches!(op, "acquire" | "record" | "peek"),
        "{answer}"
    );
    let settles = matches!(op, "settle" | "refund" | "renew");
    assert_eq!(is("applied"), settles, "{answer}");
    let counts = is("at_us");
    for name in [
        "limit",
        "used",
        "remaining",
        "refill_after_us",
        "reset_after_us",
    ] {
        assert_eq!(is(name), counts, "{name}: {answer}");
    }
    let limits = answer["limits"].as_array().unwrap();
    assert_eq!(limits.is_empty(), !counts, "{answer}");
    for limit in limits {
        let null = assert_fields("| field of `limits` ", limit);
        assert!(
            null.iter()
                .all(|name| matches!(&**name, "resolution_us" | "retry_after_us")),
            "{answer}"
        );
    }
}

/// Returns the configuration of the examples.
pub(crate) fn config() -> &'static str {
    let (_, config) = DOC.split_once("```yaml\n").unwrap();
    config.split("```").next().unwrap()
}

/// Runs the examples against their configuration. Returns the fixture and its responses.
async fn run_examples() -> (Fixture, Vec<Value>) {
    let fixture = Fixture::new(config(), Arc::new(MemoryStore::new()), Headers::default());
    let mut receipt = Value::Null;
    let mut answers = Vec::new();
    for row in rows("| operation | request ") {
        let op = &row[0];
        let mut request = parsed(&row[1]);
        request["domain"] = json!("edge");
        if request["receipt"] == "…" {
            request["receipt"] = receipt.clone();
        }
        let (status, answer) = fixture
            .answer(&format!("/v1/{op}"), &request.to_string())
            .await;
        assert_eq!(status, 200, "{row:?}: {answer}");
        assert_decision(op, &answer);
        assert_has(
            &answer,
            &parsed(&row[2]),
            &mut HashMap::new(),
            &format!("{row:?}: {answer}"),
        );
        if request["id"] == "order 1" && !receipt.is_null() {
            assert_eq!(answer["receipt"], receipt, "{answer}");
        }
        if !answer["receipt"].is_null() {
            receipt = answer["receipt"].clone();
        }
        answers.push(answer);
    }
    (fixture, answers)
}

#[tokio::test]
async fn every_example_responds_as_its_row_says() {
    let (fixture, answers) = run_examples().await;
    let ops: BTreeSet<_> = answers.iter().map(|answer| answer["op"].as_str()).collect();
    assert_eq!((answers.len(), ops.len()), (32, 7));
    // Binding and other limits, in the policy's order.
    let status = r#"{"domain": "edge", "descriptor": [["customer", "7"]]}"#;
    let answer = fixture.answer("/v1/status", status).await.1;
    let shown = |i: usize| {
        ["limit", "window_us", "resolution_us"].map(|name| answer["limits"][i][name].as_u64())
    };
    assert_eq!(shown(0), [Some(10), Some(60_000_000), None]);
    let month = Some(30 * 86_400_000_000);
    assert_eq!(shown(1), [Some(1_000), month, Some(3_600_000_000)]);
}

#[tokio::test]
async fn options_decide_as_their_rows_say() {
    let config = "{domain: edge, descriptors: [{key: customer, rate_limit: {policy: 10/1m}}]}";
    let mut redis = Redis::start().unwrap();
    redis.kill();
    let url = redis.url();
    let rows = rows("| option | status ");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let option: Vec<_> = row[0].split(' ').collect();
        let unmatched = option[0] == "--unmatched";
        let store = if unmatched { "memory" } else { &url };
        let server = Server::start(config, &[&option[..], &["--store", store]].concat());
        let key = if unmatched { "custmer" } else { "customer" };
        let line = format!("acquire {key}=7 => {} {}", row[1], row[2]);
        server.check_in("edge", &line).await;
        if unmatched {
            // Envoy is told the same, and nothing is charged.
            let lines = match &*row[0] {
                "--unmatched allow" => {
                    "customer=8 & custmer=7 => OK | OK customer 10/MINUTE 9 60s | OK 0
                     status customer=8 => {\"used\": 1}"
                }
                "--unmatched deny" => {
                    "customer=8 & custmer=7 => OVER | OK customer 10/MINUTE 10 0s | OVER 0
                     status customer=8 => {\"used\": 0}"
                }
                _ => {
                    "customer=8 & custmer=7 => 400 descriptors[1]: no rule matches
                     status customer=8 => {\"used\": 0}"
                }
            };
            server.check_in("edge", lines).await;
            let elsewhere = r#"{"domain": "nowhere", "descriptor": [["customer", "7"]]}"#;
            server.post("/v1/acquire", elsewhere);
            let counted = ["edge", ""].map(|domain| {
                server.metric(&format!(
                    "limiter_server_unmatched_total{{domain=\"{domain}\"}}"
                ))
            });
            assert_eq!(counted, [Some(2.0), Some(1.0)], "{row:?}");
        }
    }
}

#[tokio::test]
async fn several_limits_are_one_decision() {
    let config = "
domain: d
descriptors:
- { key: a, rate_limit: { policy: 5/1h } }
- { key: b, rate_limit: { policy: 3/1h } }
- { key: merged, rate_limit: { policy: 9/1d~1h } }
- { key: tried, shadow_mode: true, rate_limit: { policy: 1/1h } }
- { key: q, quota_mode: true, rate_limit: { policy: 1/1h } }
- { key: r, quota_mode: true, rate_limit: { policy: 2/1h } }
- { key: free, rate_limit: { unlimited: true } }
- { key: never, rate_limit: { unit: day, requests_per_unit: 0 } }
- { key: slots, rate_limit: { policy: '1/10m, 9/1h' } }
";
    let lines = r#"
        acquire_all a +2 & b => true | true 2 receipt | true 1 receipt
        acquire_all a +2 & b +3 => false | true 2 | false 1
        acquire_all b +0 & a => true | true 1 | true 3 receipt
        acquire_all b +2 & a +0 => true | true 3 receipt | true 3
        acquire_all b +0 & a => false | false 3 | true 3
        acquire_all a +6 & b +0 => false | false error | false 3
        acquire_all a +3 & b +0 & a +3 => false | false error | false 3 | false error
        acquire_all a & never & free => false | true 3 | false null | true null
        acquire_all a & free & nobody => true | true 4 receipt | true null | true null
        acquire_all merged +2 & a => true | true 2 | true 5 receipt
        acquire_all tried & merged => true | true 1 receipt | true 3
        acquire_all tried & merged => true | true 1 | true 4
        acquire_all merged & a => false | true 4 | false 5
        acquire_all q & r => true | true 1 receipt | true 1 receipt
        acquire_all q & r => true | true 1 | true 2 receipt
        acquire_all q & r & tried +0 => false | false 1 | false 2 | true 1
        // A repetition counts once. Two calls on one log are one charge, whose receipt the first has.
        acquire_all a=x +2 & a=x +2 {"id": "once"} => {"calls": [{"cost": 4, "receipt": "$first"}, {"cost": 0, "receipt": null}]}
        acquire_all a=x +2 & a=x +2 {"id": "once"} => {"calls": [{"receipt": "$first"}, {}]}
        // Beside a denial, it still has its receipt.
        acquire_all b & a=x +2 & a=x +2 {"id": "once"} => {"allowed": false, "calls": [{}, {"receipt": "$first"}, {}]}
        refund a=x {"receipt": "$first"} => {"used": 0}
        /v1/acquire_all {"domain": "d", "calls": [{"descriptor": [["a", "x"]]}, {"descriptor": []}]} => 400 calls[1].descriptor: expected at least one pair of a key and a value
        acquire_all merged & a {"id": "once"} => 400 need an exact limit
        MANY => 400 1001 calls, expected at most 1000
        // A late renewal applies while a longer window counts the entry, even if others hold the slot.
        acquire slots => {"receipt": "$slot"}
        10m: acquire slots => {"allowed": true}
        renew slots {"receipt": "$slot"} => {"applied": true, "used": 1}
        1h: renew slots {"receipt": "$slot"} => {"applied": false}
    "#;
    let many = format!("acquire_all {}", vec!["a"; 1_001].join(" & "));
    let fixture = Fixture::new(config, Arc::new(MemoryStore::new()), Headers::None);
    fixture.check(&lines.replace("MANY", &many)).await;
}

#[tokio::test]
async fn an_acquire_waits_and_is_counted() {
    let config = "
domain: d
descriptors:
- { key: two, rate_limit: { policy: '2/10m, 3/1h' } }
- { key: soon, rate_limit: { policy: 1/300ms } }
- { key: merged, rate_limit: { policy: 5/1d~1h } }
- { key: settled, rate_limit: { policy: '5/10m, 5/1d~1h' } }
- { key: never, rate_limit: { unit: second, requests_per_unit: 0 } }
- { key: tried, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
";
    let server = Server::start(config, &[]);
    let lines = r#"
        acquire two => {"allowed": true}
        acquire two => {"allowed": true}
        acquire two => {"allowed": false}
        acquire two {"cost": 3} => {"allowed": false}
        acquire tried => {"allowed": true}
        acquire tried => {"allowed": true}
        acquire never => {"allowed": false}
        acquire never {"cost": 18446744073709551615} => {"allowed": false}
    "#;
    server.check(lines).await;
    // Hits are costs. One request does not bring them to their maximum.
    let counts = r#"
        decisions_total{domain="d",rule="two",outcome="allowed"} => 2
        decisions_total{domain="d",rule="two",outcome="denied"} => 2
        decisions_total{domain="d",rule="tried",outcome="shadow_denied"} => 1
        decisions_total{domain="d",rule="never",outcome="denied"} => 2
        hits_total{domain="d",rule="never"} => 4294967296
        hits_total{domain="d",rule="two"} => 6
        near_limit_total{domain="d",rule="two"} => 1
    "#;
    for (series, count) in crate::ask::rows(counts) {
        let found = server.metric(&format!("limiter_server_{series}"));
        assert_eq!(found, count.parse().ok(), "{series}");
    }
    let lines = r#"
        // With a resolution there are receipts and ids while an exact limit counts the entry.
        acquire settled {"cost": 4, "id": "once"} => {"receipt": "$receipt"}
        settle settled {"cost": 1, "receipt": "$receipt"} => {"used": 1}
        acquire merged => {"receipt": null}
        acquire merged {"id": "once"} => 400 id: limiter "d/merged": permits and idempotency keys need an exact limit: add one whose window is as long as the call takes, such as `60000/10m`
        acquire soon {"wait_ms": 60000} => {"allowed": true, "at_us": "…"}
        acquire soon {"wait_ms": 60000} => {"allowed": true, "at_us": "…"}
        acquire two {"wait_ms": 60000} => {"allowed": false}
    "#;
    let began = std::time::Instant::now();
    server.check(lines).await;
    assert!(began.elapsed() >= Duration::from_millis(200));
}

/// Returns the rules of `d` with a rule `user`.
fn user_rule(fields: &str) -> String {
    format!("{{domain: d, descriptors: [{{key: user, {fields}}}]}}")
}

/// Acquires units of `user=ann`, and waits for up to a minute.
async fn acquire(fixture: &Fixture, cost: u64) -> Value {
    let body =
        json!({ "domain": "d", "descriptor": [["user", "ann"]], "cost": cost, "wait_ms": 60_000 });
    let body = body.to_string();
    let answer = timeout(PATIENCE, fixture.answer("/v1/acquire", &body)).await;
    answer.expect("it waits too long").1
}

#[tokio::test]
async fn a_call_that_waits_follows_a_reload() {
    // The rule at first, after the reload, and how many of 30 waiting calls are then allowed, by which rule.
    let lines = "
        policy: 2/50s => rate_limit: { policy: 20/1h } => 18 user
        policy: 2/50s, counting: attempts => rate_limit: { policy: 20/1h } => 18 user
        policy: 2/50s => rate_limit: { policy: 20/1h, counting: attempts } => 18 user
        policy: 2/50s => rate_limit: { unlimited: true } => 30 user
        policy: 2/50s => rate_limit: { unit: hour, requests_per_unit: 0 } => 0 user
        policy: 2/50s => shadow_mode: true, rate_limit: { policy: 1/1h } => 30 user
        policy: 2/59s => shadow_mode: true, rate_limit: { policy: 2/59s } => 30 user
        policy: 2/50s => value: bob => 30 null
    ";
    for (before, rest) in crate::ask::rows(lines) {
        let (after, expected) = rest.split_once(" => ").unwrap();
        let config = user_rule(&format!("rate_limit: {{ {before} }}"));
        let fixture = Fixture::new(&config, Arc::new(MemoryStore::new()), Headers::None);
        assert_eq!(acquire(&fixture, 2).await["allowed"], true);
        let mut waiting: Vec<_> = (0..30).map(|_| Box::pin(acquire(&fixture, 1))).collect();
        for call in &mut waiting {
            assert!(call.now_or_never().is_none(), "{before}: it does not wait");
        }
        let store = fixture.service.store().shared();
        let rules = RuleSet::parse("f", user_rule(after).as_bytes(), store, None);
        fixture.service.reload(Ok(rules.unwrap()));
        let answers = join_all(waiting).await;
        let allowed = answers.iter().filter(|answer| answer["allowed"] == true);
        let rule = answers[0]["rule"].as_str().unwrap_or("null");
        assert_eq!(
            format!("{} {rule}", allowed.count()),
            expected,
            "{before}, {after}"
        );
        assert!(
            answers
                .iter()
                .all(|answer| answer["rule"] == answers[0]["rule"])
        );
    }
}

#[tokio::test]
async fn a_call_that_waits_is_one_attempt() {
    let config = user_rule("rate_limit: { policy: '16/200ms, 99/1h', counting: attempts }");
    let server = Server::start(&config, &[]);
    let wait = r#"{"domain": "d", "descriptor": [["user", "ann"]], "wait_ms": 60000}"#;
    let first = wait.replace('}', r#", "cost": 16}"#);
    assert_eq!(server.post("/v1/acquire", &first).1["allowed"], true);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(server.post("/v1/acquire", wait).1["allowed"], true));
        }
    });
    let status = server
        .post(
            "/v1/status",
            r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#,
        )
        .1;
    assert_eq!(status["limits"][1]["used"], 22);
}

#[test]
fn a_client_that_leaves_a_wait_takes_no_unit_and_no_seat() {
    let config = "{domain: d, descriptors: [{key: user, rate_limit: {policy: 1/4s}}]}";
    let server = Server::start(config, &["--max-connections", "1"]);
    let seat = || {
        let mut stream = TcpStream::connect(server.http).unwrap();
        let patience = Duration::from_millis(1_500);
        stream.set_read_timeout(Some(patience)).unwrap();
        // A connection above the limit is closed after a second.
        stream.read(&mut [0]).is_err().then_some(stream)
    };
    let body = r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#;
    let wait = body.replace('}', r#", "wait_ms": 60000}"#);
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}",
        wait.len()
    );
    let mut waits = until("there is a seat", seat);
    assert_eq!(server.post("/v1/acquire", body).1["allowed"], true);
    waits
        .write_all(format!("{head}\r\n\r\n{wait}").as_bytes())
        .unwrap();
    let tried = r#"limiter_store_duration_seconds_count{store="memory",operation="acquire"}"#;
    until("it waits", || {
        server.metric(tried).filter(|tried| *tried >= 2.0)
    });
    drop(waits);
    drop(until("its seat is free", seat));
    until("the window is over", || {
        (server.post("/v1/status", body).1["used"] == 0).then_some(())
    });
    assert_eq!(server.decisions("user", "allowed"), Some(1.0));
}

#[test]
fn every_other_status_has_its_cause() {
    let config = "{domain: d, descriptors: [{key: user, rate_limit: {policy: 9/1m}}]}";
    let server = Server::start(config, &[]);
    let mut redis = Redis::start().unwrap();
    redis.kill();
    let body = r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#;
    let requests = [
        (400, "POST /v1/refuse", Some(0), ""),
        (404, "POST /v1/acquire/it", None, ""),
        (405, "GET /v1/acquire", None, ""),
        (408, "POST /v1/acquire", Some(9), "{"),
        (413, "POST /v1/acquire", Some(999_999_999), ""),
    ];
    let post = |headers: &[(&str, &str)]| {
        let (status, answer) = post(server.http, "/v1/acquire", headers, body);
        (status, answer.to_string())
    };
    for row in rows("| status | cause ") {
        let status: u16 = row[0].parse().unwrap();
        let raw = requests.iter().find(|(expected, ..)| *expected == status);
        let found = match (status, raw) {
            (_, Some((_, line, len, sent))) => {
                let json =
                    |len| format!("content-type: application/json\r\ncontent-length: {len}\r\n");
                let fields = len.map_or_else(String::new, json);
                let head =
                    format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
                http(server.http, &(head + sent))
            }
            // A browser sends these for a foreign page without asking the server.
            (415, _) => {
                let form = ("content-type", "application/x-www-form-urlencoded");
                assert_eq!([post(&[]).0, post(&[form]).0], [415; 2]);
                post(&[("content-type", "text/plain")])
            }
            (503, _) => {
                let store = ["--store", &*redis.url(), "--on-outage", "error"];
                let (status, answer) = Server::start(config, &store).post("/v1/acquire", body);
                (status, answer.to_string())
            }
            _ => panic!("no request for {row:?}"),
        };
        assert_eq!(found.0, status, "{row:?}: {}", found.1);
        let says = !matches!(status, 404 | 405);
        assert!(
            if says {
                parsed(&found.1)["error"].is_string()
            } else {
                found.1.is_empty()
            },
            "{row:?}: {}",
            found.1
        );
    }
}
