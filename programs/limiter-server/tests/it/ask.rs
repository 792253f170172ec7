//! The language of requests and answers: a line for each, `request => answer`.
//!
//! | request | sends to the domain `d` |
//! |---|---|
//! | `2 * user=ann;path=/x +3 @5/HOUR & site=x` | Envoy's request with a cost of 2: two descriptors, the first of two entries, with its own cost and limit. A `-` asks for a refund |
//! | `acquire user=ann;path=/x {"cost": 2}` | the operation of `/v1` with these further fields |
//! | `acquire_all user=ann +2 & site=x {"id": "1"}` | its calls with their costs |
//! | `/v1/acquire {…` | a body to a path |
//! | `20s: user=ann` | the same, 20 seconds later |
//!
//! | answer | |
//! |---|---|
//! | `OVER \| OK user 3/MINUTE 2 60s` | Envoy's code, and of each descriptor the code, the limit, what remains, and the duration |
//! | `429 {"used": 2}` | the status, 200 by default, and these fields among others. `"…"` is anything but null, and `"$name"` keeps it for later requests |
//! | `false \| true 2 receipt \| false error` | that of `acquire_all`: whether each call is allowed, the units in use, and what else it has |
//! | `400 cost: expected` | another status, and a part of the reason |

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use limiter_core::Window;
use limiter_server::proto::RateLimitRequest;
use serde_json::{Value, json};

use crate::v1::assert_decision;

/// Something that answers requests over HTTP.
pub(crate) trait Answers {
    /// Returns the status and the body of the answer to a body in JSON.
    async fn answer(&self, path: &str, body: &str) -> (u16, Value);

    /// Lets time pass.
    fn advance(&self, by: Duration) {
        panic!("{by:?} cannot pass here");
    }

    /// Asks line by line.
    async fn check(&self, lines: &str) {
        self.check_in("d", lines).await;
    }

    /// Asks line by line in this domain.
    async fn check_in(&self, domain: &str, lines: &str) {
        let mut kept = HashMap::new();
        for (asked, expected) in rows(lines) {
            let (after, asked) = match asked.split_once(": ") {
                Some((after, asked)) if after.parse::<Window>().is_ok() => (after, asked),
                _ => ("", asked),
            };
            if let Ok(after) = after.parse::<Window>() {
                self.advance(after.as_duration());
            }
            let asked = kept_in(asked, &kept);
            let (path, body) = request(domain, &asked);
            let (status, answer) = self.answer(&path, &body).await;
            let shown = || format!("{asked}: {status} {answer}");
            let (number, rest) = expected.split_once(' ').unwrap_or((expected, ""));
            let number = number.parse::<u16>().ok();
            let rest = if number.is_some() { rest } else { expected };
            let status_is = status == number.unwrap_or(200);
            if rest.starts_with('{') {
                assert!(status_is, "{}", shown());
                let expected = kept_in(rest, &kept);
                assert_has(&answer, &parsed(&expected), &mut kept, &shown());
                let op = path.strip_prefix("/v1/").filter(|op| *op != "acquire_all");
                if let Some(op) = op.filter(|_| status == 200) {
                    assert_decision(op, &answer);
                }
            } else if number.is_some() {
                let is_same = status_is && error(&answer).contains(rest);
                assert!(is_same, "{}\nexpected {expected}", shown());
            } else {
                assert_eq!(text(&answer), expected, "{}", shown());
                let is_over = path == "/json" && expected.starts_with("OVER");
                assert_eq!(status, if is_over { 429 } else { 200 }, "{}", shown());
                assert_fields(&answer);
            }
        }
    }
}

/// Returns the two sides of each line, which `=>` separates. Skips empty lines and comments.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim);
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    rows.map(|row| {
        let (given, expected) = row.split_once("=>").unwrap_or_else(|| panic!("{row}"));
        (given.trim(), expected.trim())
    })
}

/// Replaces names by the texts that were kept.
fn kept_in(line: &str, kept: &HashMap<String, String>) -> String {
    kept.iter().fold(line.to_owned(), |line, (name, text)| {
        line.replace(name, text)
    })
}

const OPERATIONS: [&str; 8] = [
    "acquire",
    "record",
    "peek",
    "status",
    "settle",
    "refund",
    "renew",
    "acquire_all",
];

/// Returns the path and the body of a request.
fn request(domain: &str, text: &str) -> (String, String) {
    if text.starts_with('/') {
        let (path, body) = text.split_once(' ').unwrap_or((text, ""));
        return (path.to_owned(), body.to_owned());
    }
    let (asked, fields) = text
        .split_once(" {")
        .map_or((text, json!({})), |(asked, fields)| {
            (asked, parsed(&format!("{{{fields}")))
        });
    let (op, asked) = match asked.split_once(' ') {
        Some((op, asked)) if OPERATIONS.contains(&op) => (op, asked),
        _ => return ("/json".to_owned(), envoys(domain, asked).to_string()),
    };
    let calls = asked.split(" & ").map(|call| {
        let (entries, cost) = call.split_once(" +").unwrap_or((call, "1"));
        json!({ "descriptor": entries_of(entries), "cost": parsed(cost) })
    });
    let mut body = match op {
        "acquire_all" => json!({ "calls": calls.collect::<Vec<_>>() }),
        _ => json!({ "descriptor": entries_of(asked) }),
    };
    body["domain"] = json!(domain);
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    (format!("/v1/{op}"), body.to_string())
}

/// Returns Envoy's request.
pub(crate) fn decided(text: &str) -> RateLimitRequest {
    serde_json::from_value(envoys("d", text)).unwrap()
}

fn entries_of(text: &str) -> Vec<(&str, &str)> {
    text.split(';')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect()
}

fn envoys(domain: &str, text: &str) -> Value {
    let (hits, text) = text.split_once(" * ").unwrap_or(("0", text));
    let descriptor = |text: &str| {
        let mut words = text.split(' ');
        let entries = entries_of(words.next().unwrap());
        let entries = entries
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": value }));
        let mut descriptor = json!({ "entries": entries.collect::<Vec<_>>() });
        for word in words {
            match (word.split_at(1), word.split_once('/')) {
                (("-", _), _) => descriptor["isNegativeHits"] = json!(true),
                (("+", hits), _) => descriptor["hitsAddend"] = parsed(hits),
                (_, Some((max, unit))) => {
                    let unit = unit
                        .parse()
                        .map_or_else(|_| json!(unit), |unit: i32| json!(unit));
                    descriptor["limit"] =
                        json!({ "requestsPerUnit": parsed(&max[1..]), "unit": unit });
                }
                _ => panic!("{word} in {text}"),
            }
        }
        descriptor
    };
    let descriptors = text
        .split(" & ")
        .filter(|text| !text.is_empty())
        .map(descriptor);
    json!({ "domain": domain, "descriptors": descriptors.collect::<Vec<_>>(), "hitsAddend": parsed(hits) })
}

pub(crate) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_default()
}

/// Returns an answer of Envoy's or to `acquire_all` as text.
pub(crate) fn text(answer: &Value) -> String {
    let code = |code: &Value| if *code == "OK" { "OK" } else { "OVER" };
    let shown = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let mut out = String::new();
    if answer["op"] == "acquire_all" {
        write!(out, "{}", answer["allowed"]).unwrap();
        for call in answer["calls"].as_array().unwrap() {
            assert_decision("acquire", call);
            let used = if call["error"].is_null() {
                shown(&call["used"])
            } else {
                "error".to_owned()
            };
            let receipt = if call["receipt"].is_null() {
                ""
            } else {
                " receipt"
            };
            write!(out, " | {} {used}{receipt}", call["allowed"]).unwrap();
        }
        return out;
    }
    out.push_str(code(&answer["overallCode"]));
    for status in answer["statuses"].as_array().into_iter().flatten() {
        write!(out, " | {}", code(&status["code"])).unwrap();
        let or = |value: &Value, default: &str| {
            if value.is_null() {
                default.to_owned()
            } else {
                shown(value)
            }
        };
        if let Some(limit) = status.get("currentLimit") {
            let [max, unit] = [
                or(&limit["requestsPerUnit"], "0"),
                or(&limit["unit"], "UNKNOWN"),
            ];
            write!(out, " {} {max}/{unit}", shown(&limit["name"])).unwrap();
        }
        write!(out, " {}", or(&status["limitRemaining"], "0")).unwrap();
        if let Some(duration) = status.get("durationUntilReset") {
            write!(out, " {}", shown(duration)).unwrap();
        }
    }
    out
}

/// The field `ratelimit` and the statuses agree on what remains. Rules with several limits have names with a window.
pub(crate) fn assert_fields(answer: &Value) {
    let mut fields = answer["responseHeadersToAdd"]
        .as_array()
        .into_iter()
        .flatten();
    let Some(field) = fields.find(|field| field["key"] == "ratelimit") else {
        return;
    };
    let mut seen = answer["statuses"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|status| {
            let name = status.get("currentLimit")?["name"].as_str()?;
            Some((
                format!("\"{name}\";r"),
                status["limitRemaining"].as_u64().unwrap_or(0),
            ))
        });
    for item in field["value"]
        .as_str()
        .unwrap()
        .split(", ")
        .filter(|item| !item.contains('-'))
    {
        let (name, remaining) = item.split(";t=").next().unwrap().rsplit_once('=').unwrap();
        let remaining = remaining.parse::<u64>().unwrap().min(u32::MAX.into());
        assert!(
            seen.any(|(other, left)| name == other && left == remaining),
            "{item} in {answer}"
        );
    }
}

/// Asserts that a value is as expected, and keeps texts that have a name. An object may have other fields, too.
pub(crate) fn assert_has(
    found: &Value,
    expected: &Value,
    kept: &mut HashMap<String, String>,
    shown: &str,
) {
    match expected {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert_has(&found[name], value, kept, &format!("{name}: {shown}"));
            }
        }
        Value::Array(items) => {
            assert_eq!(found.as_array().map(Vec::len), Some(items.len()), "{shown}");
            for (i, item) in items.iter().enumerate() {
                assert_has(&found[i], item, kept, shown);
            }
        }
        Value::String(any) if any == "…" => assert!(!found.is_null(), "{shown}"),
        Value::String(name) if name.starts_with('$') => {
            kept.insert(
                name.clone(),
                found
                    .as_str()
                    .unwrap_or_else(|| panic!("{shown}"))
                    .to_owned(),
            );
        }
        _ => assert_eq!(found, expected, "{shown}"),
    }
}
