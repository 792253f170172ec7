//! `/v1` against every row of the tables in `docs/v1.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::http::Request;
use axum::Router;
use axum::body::{Body, to_bytes};
use futures_util::FutureExt;
use futures_util::future::join_all;
use limiter_memory::MemoryStore;
use limiter_server::http::routes;
use limiter_server::rules::RuleSet;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use serde_json::{Value, json};
use testbed::server::Server as Redis;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::server::{PATIENCE, Server, http, post, until};
use crate::table;

const DOC: &str = include_str!("../../docs/v1.md");

/// Returns the cells of the table whose head begins like this, without backquotes.
fn rows(head: &str) -> Vec<Vec<String>> {
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

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
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
fn assert_decision(op: &str, answer: &Value) {
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

/// Asserts that these fields have these values. `…` is anything but null.
fn assert_shown(row: &[String], expected: &str, answer: &Value) {
    for (name, value) in parsed(expected).as_object().unwrap() {
        let found = &answer[name];
        assert!(
            if value == "…" {
                !found.is_null()
            } else {
                found == value
            },
            "{name} of {row:?}: {answer}"
        );
    }
}

/// Runs the examples against their configuration. Returns the server and its responses.
fn run_examples() -> (Server, Vec<Value>) {
    let config = DOC
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let server = Server::start(config, &[]);
    let mut receipt = Value::Null;
    let run = |row: Vec<String>| {
        let op = &row[0];
        let mut request = parsed(&row[1]);
        request["domain"] = json!("edge");
        if request["receipt"] == "…" {
            request["receipt"] = receipt.clone();
        }
        let (status, answer) = server.post(&format!("/v1/{op}"), &request.to_string());
        assert_eq!(status, 200, "{row:?}: {answer}");
        assert_decision(op, &answer);
        assert_shown(&row, &row[2], &answer);
        if request["id"] == "order 1" && !receipt.is_null() {
            assert_eq!(answer["receipt"], receipt, "{answer}");
        }
        if !answer["receipt"].is_null() {
            receipt = answer["receipt"].clone();
        }
        answer
    };
    let answers = rows("| operation | request ")
        .into_iter()
        .map(run)
        .collect();
    (server, answers)
}

/// Returns each kind of response: its status and its body.
pub(crate) fn responses() -> Vec<(u16, String)> {
    let decisions = run_examples()
        .1
        .into_iter()
        .map(|answer| (200, answer.to_string()));
    let others = rows("| status | cause ").into_iter().map(|row| {
        let status = row[0].parse().unwrap();
        (
            status,
            if matches!(status, 404 | 405) {
                String::new()
            } else {
                json!({ "error": row[1] }).to_string()
            },
        )
    });
    decisions.chain(others).collect()
}

#[test]
fn every_example_responds_as_its_row_says() {
    let (server, answers) = run_examples();
    let ops: BTreeSet<_> = answers.iter().map(|answer| answer["op"].as_str()).collect();
    assert_eq!((answers.len(), ops.len()), (32, 7));
    assert_eq!(
        server.metric(r#"limiter_server_unmatched_total{domain="edge"}"#),
        Some(3.0)
    );
    // Binding and other limits, in the policy's order.
    let answer = server
        .post(
            "/v1/status",
            r#"{"domain": "edge", "descriptor": [["customer", "7"]]}"#,
        )
        .1;
    let shown = |i: usize| {
        ["limit", "window_us", "resolution_us"].map(|name| answer["limits"][i][name].as_u64())
    };
    assert_eq!(shown(0), [Some(10), Some(60_000_000), None]);
    assert_eq!(
        shown(1),
        [Some(1_000), Some(30 * 86_400_000_000), Some(3_600_000_000)]
    );
}

#[test]
fn options_decide_as_their_rows_say() {
    let config = "{domain: edge, descriptors: [{key: customer, rate_limit: {policy: 10/1m}}]}";
    let mut redis = Redis::start().unwrap();
    redis.kill();
    let rows = rows("| option | status ");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let (option, status): (Vec<_>, u16) =
            (row[0].split(' ').collect(), row[1].parse().unwrap());
        let url = redis.url();
        let unmatched = option[0] == "--unmatched";
        let args = if unmatched {
            vec![]
        } else {
            vec!["--store", &*url]
        };
        let server = Server::start(config, &[option, args].concat());
        let key = if unmatched { "custmer" } else { "customer" };
        let body = json!({ "domain": "edge", "descriptor": [[key, "7"]] }).to_string();
        let (found, answer) = server.post("/v1/acquire", &body);
        assert_eq!(found, status, "{row:?}: {answer}");
        assert_shown(&row, &row[2], &answer);
        if status == 200 {
            assert_decision("acquire", &answer);
        }
        if unmatched {
            // Envoy is told the same, and nothing is charged.
            let claims = json!([{ "entries": [{ "key": "customer", "value": "8" }] }, { "entries": [{ "key": key, "value": "7" }] }]);
            let (found, answer) = server.post(
                "/json",
                &json!({ "domain": "edge", "descriptors": claims }).to_string(),
            );
            let (expected, used) = match &*row[0] {
                "--unmatched allow" => (200, 1),
                "--unmatched deny" => (429, 0),
                _ => (400, 0),
            };
            assert_eq!(found, expected, "{row:?}: {answer}");
            let charged = server
                .post(
                    "/v1/status",
                    r#"{"domain": "edge", "descriptor": [["customer", "8"]]}"#,
                )
                .1;
            assert_eq!(charged["used"], json!(used), "{row:?}");
            server.post("/v1/acquire", &body.replace("edge", "nowhere"));
            let counted = ["edge", ""].map(|domain| {
                server.metric(&format!(
                    "limiter_server_unmatched_total{{domain=\"{domain}\"}}"
                ))
            });
            assert_eq!(counted, [Some(2.0), Some(1.0)], "{row:?}");
        }
    }
}

#[test]
fn several_limits_are_one_decision() {
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
";
    let server = Server::start(config, &[]);
    let call = |text: &str| {
        let (key, cost) = text.split_once(' ').unwrap();
        json!({ "descriptor": [[key, "x"]], "cost": cost.parse::<u64>().unwrap() })
    };
    let ask = |calls: &str, id: Value| {
        let calls: Vec<_> = calls.split(", ").map(call).collect();
        let body = json!({ "domain": "d", "calls": calls, "id": id });
        server.post("/v1/acquire_all", &body.to_string())
    };
    // Of each call whether it is allowed, the units in use, and whether it has a receipt.
    for (asked, expected) in table::rows(
        "
        a 2, b 1 => true: + 2 receipt, + 1 receipt
        a 2, b 3 => false: + 2, - 1
        b 0, a 1 => true: + 1, + 3 receipt
        b 2, a 0 => true: + 3 receipt, + 3
        b 0, a 1 => false: - 3, + 3
        a 6, b 0 => false: - error, - 3
        a 3, b 0, a 3 => false: - error, - 3, - error
        a 1, never 1, free 1 => false: + 3, - null, + null
        a 1, free 1, nobody 1 => true: + 4 receipt, + null, + null
        merged 2, a 1 => true: + 2, + 5 receipt
        tried 1, merged 1 => true: + 1 receipt, + 3
        tried 1, merged 1 => true: + 1, + 4
        merged 1, a 1 => false: + 4, - 5
        q 1, r 1 => true: + 1 receipt, + 1 receipt
        q 1, r 1 => true: + 1, + 2 receipt
        q 1, r 1, tried 0 => false: - 1, - 2, + 1
    ",
    ) {
        let answer = ask(asked, Value::Null).1;
        let shown = |call: &Value| {
            assert_decision("acquire", call);
            let sign = if call["allowed"] == true { '+' } else { '-' };
            let receipt = if call["receipt"].is_string() {
                " receipt"
            } else {
                ""
            };
            match &call["error"] {
                Value::Null => format!("{sign} {}{receipt}", call["used"]),
                _ => format!("{sign} error"),
            }
        };
        let calls: Vec<_> = answer["calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(shown)
            .collect();
        assert_eq!(
            format!("{}: {}", answer["allowed"], calls.join(", ")),
            expected,
            "{asked}"
        );
        assert_eq!(answer["op"], "acquire_all");
    }
    // A repetition counts once. Two calls on one log are one charge, whose receipt the first has.
    let body = |op: &str, receipt: &Value| {
        let body = json!({ "domain": "d", "descriptor": [["a", "x"]], "receipt": receipt });
        server.post(&format!("/v1/{op}"), &body.to_string()).1
    };
    let reset = json!({ "domain": "d", "path": "a", "key": "x" }).to_string();
    post(server.admin, "/reset", &[("x-limiter-admin", "1")], &reset);
    let [first, second] = [(); 2].map(|()| ask("a 2, a 2", json!("once")).1["calls"].take());
    let receipts = |calls: &Value| [0, 1].map(|i| calls[i]["receipt"].clone());
    assert_eq!(receipts(&first), receipts(&second));
    assert_eq!([&first[0]["cost"], &first[1]["cost"]], [4, 0]);
    assert_eq!(first[1]["receipt"], Value::Null);
    // Beside a denial, it still has its receipt.
    let beside = ask("b 1, a 2, a 2", json!("once")).1;
    assert_eq!(beside["allowed"], false, "{beside}");
    assert_eq!(beside["calls"][1]["receipt"], first[0]["receipt"]);
    assert_eq!(body("refund", &first[0]["receipt"])["used"], 0);
    let nothing =
        json!({ "domain": "d", "calls": [{ "descriptor": [["a", "x"]] }, { "descriptor": [] }] });
    let (status, answer) = server.post("/v1/acquire_all", &nothing.to_string());
    let text = "calls[1].descriptor: expected at least one pair of a key and a value";
    assert_eq!((status, &answer["error"]), (400, &json!(text)));
    for (calls, id, text) in [
        ("merged 1, a 1", json!("once"), "need an exact limit"),
        (
            &*vec!["a 1"; 1_001].join(", "),
            Value::Null,
            "1001 calls, expected at most 1000",
        ),
    ] {
        let (status, answer) = ask(calls, id);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(text), "{answer}");
    }
}

#[test]
fn an_acquire_waits_and_is_counted() {
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
    let call = |op: &str, key: &str, cost: u64, more: Value| {
        let mut body = json!({ "domain": "d", "descriptor": [[key, "x"]], "cost": cost });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.post(&format!("/v1/{op}"), &body.to_string()).1
    };
    let acquired: Vec<Value> = [
        ("two", 1),
        ("two", 1),
        ("two", 1),
        ("two", 3),
        ("tried", 1),
        ("tried", 1),
        ("never", 1),
    ]
    .iter()
    .map(|(key, cost)| call("acquire", key, *cost, json!({}))["allowed"].clone())
    .collect();
    assert_eq!(acquired, [true, true, false, false, true, true, false]);
    for (rule, outcome, count) in [
        ("two", "allowed", 2.0),
        ("two", "denied", 2.0),
        ("tried", "shadow_denied", 1.0),
        ("never", "denied", 1.0),
    ] {
        assert_eq!(
            server.decisions(rule, outcome),
            Some(count),
            "{rule} {outcome}"
        );
    }
    // Hits are costs.
    assert_eq!(
        server.metric(r#"limiter_server_hits_total{domain="d",rule="two"}"#),
        Some(6.0)
    );
    assert_eq!(
        server.metric(r#"limiter_server_near_limit_total{domain="d",rule="two"}"#),
        Some(1.0)
    );

    // With a resolution there are receipts and ids while an exact limit counts the entry.
    let acquired = call("acquire", "settled", 4, json!({ "id": "once" }));
    let receipt = json!({ "receipt": acquired["receipt"] });
    assert_eq!(call("settle", "settled", 1, receipt)["used"], json!(1));
    assert_eq!(
        call("acquire", "merged", 1, json!({}))["receipt"],
        json!(null)
    );
    let refused = call("acquire", "merged", 1, json!({ "id": "once" }));
    assert_eq!(
        refused["error"],
        "id: limiter \"d/merged\": permits and idempotency keys need an exact limit: add one whose window is as long as the \
         call takes, such as `60000/10m`"
    );

    let waited =
        |key: &str| call("acquire", key, 1, json!({ "wait_ms": 60_000 }))["allowed"].clone();
    let began = Instant::now();
    assert_eq!(
        [waited("soon"), waited("soon"), waited("two")],
        [true, true, false]
    );
    assert!(began.elapsed() >= Duration::from_millis(200));
}

/// Serves a rule `user` with this `rate_limit` in this process.
fn serve(limit: &str) -> (Arc<Service>, Router) {
    let store = Store::over(Arc::new(MemoryStore::new()));
    let rules = user_rule(limit, &store);
    let service = Arc::new(Service::new(rules, store, Headers::default()));
    (Arc::clone(&service), routes(service, &[]))
}

fn user_rule(limit: &str, store: &Store) -> RuleSet {
    let text = format!("{{domain: d, descriptors: [{{key: user, {limit}}}]}}");
    RuleSet::parse("f", text.as_bytes(), store.shared(), None).unwrap()
}

/// Acquires units, and waits for up to a minute.
async fn acquire(routes: Router, cost: u64) -> Value {
    let body =
        json!({ "domain": "d", "descriptor": [["user", "ann"]], "cost": cost, "wait_ms": 60_000 });
    let request = Request::post("/v1/acquire").header("content-type", "application/json");
    let response = routes.oneshot(request.body(Body::from(body.to_string())).unwrap());
    let body = response.await.unwrap().into_body();
    let body = timeout(PATIENCE, to_bytes(body, usize::MAX)).await.unwrap();
    serde_json::from_slice(&body.unwrap()).unwrap()
}

#[tokio::test]
async fn a_call_that_waits_follows_a_reload() {
    // The rule at first, after the reload, and how many of 30 waiting calls are then allowed, by which rule.
    for (before, after, allowed, rule) in [
        ("policy: 2/50s", "rate_limit: { policy: 20/1h }", 18, "user"),
        (
            "policy: 2/50s, counting: attempts",
            "rate_limit: { policy: 20/1h }",
            18,
            "user",
        ),
        (
            "policy: 2/50s",
            "rate_limit: { policy: 20/1h, counting: attempts }",
            18,
            "user",
        ),
        (
            "policy: 2/50s",
            "rate_limit: { unlimited: true }",
            30,
            "user",
        ),
        (
            "policy: 2/50s",
            "rate_limit: { unit: hour, requests_per_unit: 0 }",
            0,
            "user",
        ),
        (
            "policy: 2/50s",
            "shadow_mode: true, rate_limit: { policy: 1/1h }",
            30,
            "user",
        ),
        (
            "policy: 2/59s",
            "shadow_mode: true, rate_limit: { policy: 2/59s }",
            30,
            "user",
        ),
        ("policy: 2/50s", "value: bob", 30, ""),
    ] {
        let (service, routes) = serve(&format!("rate_limit: {{ {before} }}"));
        assert_eq!(acquire(routes.clone(), 2).await["allowed"], true);
        let mut waiting: Vec<_> = (0..30)
            .map(|_| Box::pin(acquire(routes.clone(), 1)))
            .collect();
        for call in &mut waiting {
            assert!(call.now_or_never().is_none(), "{before}: it does not wait");
        }
        service.reload(Ok(user_rule(after, service.store())));
        let answers = timeout(PATIENCE, join_all(waiting)).await.unwrap();
        let found = answers
            .iter()
            .filter(|answer| answer["allowed"] == true)
            .count();
        assert_eq!(found, allowed, "{before}, {after}");
        let shown = |answer: &Value| answer["rule"].as_str().unwrap_or_default().to_owned();
        assert!(
            answers.iter().all(|answer| shown(answer) == rule),
            "{answers:?}"
        );
    }
}

#[tokio::test]
async fn a_call_that_waits_is_one_attempt() {
    let (service, routes) = serve("rate_limit: { policy: '16/200ms, 99/1h', counting: attempts }");
    assert_eq!(acquire(routes.clone(), 16).await["allowed"], true);
    let six = join_all((0..6).map(|_| acquire(routes.clone(), 1)));
    for answer in timeout(PATIENCE, six).await.unwrap() {
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    let rules = service.rules();
    let limiter = rules.iter().next().unwrap().limiter().unwrap();
    let status = limiter.status(rules.find("d", &[("user", "ann")]).unwrap().key);
    assert_eq!(status.await.unwrap().limits()[1].used(), 22);
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
        (
            400,
            "POST /v1/refuse",
            "content-type: application/json|content-length: 0",
            "",
        ),
        (404, "POST /v1/acquire/it", "", ""),
        (405, "GET /v1/acquire", "", ""),
        (
            408,
            "POST /v1/acquire",
            "content-type: application/json|content-length: 9",
            "{",
        ),
        (
            413,
            "POST /v1/acquire",
            "content-type: application/json|content-length: 999999999",
            "",
        ),
    ];
    let post = |headers: &[(&str, &str)]| {
        let (status, answer) = post(server.http, "/v1/acquire", headers, body);
        (status, answer.to_string())
    };
    for row in rows("| status | cause ") {
        let status: u16 = row[0].parse().unwrap();
        let raw = requests.iter().find(|(expected, ..)| *expected == status);
        let found = match (status, raw) {
            (_, Some((_, line, fields, sent))) => {
                let fields = format!("host: x|connection: close|{fields}").replace('|', "\r\n");
                let head = format!("{line} HTTP/1.1\r\n{}\r\n\r\n", fields.trim_end());
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
