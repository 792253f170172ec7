//! What Envoy is told: one table for each part of the answer.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use limiter_core::store::LogKey;
use limiter_core::{ErrorKind, SharedStore, Window, WithClock};
use limiter_memory::MemoryStore;
use limiter_server::grpc::Grpc;
use limiter_server::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use limiter_server::proto::{RateLimitService, Unit};
use limiter_server::rules::RuleSet;
use limiter_server::service::{Failure, Headers, MAX_DESCRIPTORS, Service};
use limiter_server::store::Store;
use limiter_testkit::MockClock;
use limiter_wrappers::Guarded;
use testbed::{Does, Faulty};
use tokio::time::Instant;
use tonic::Request;

use crate::server::PATIENCE;
use crate::table::rows;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: site
    rate_limit: { unit: second, requests_per_unit: 5, name: whole site }
  - key: two
    rate_limit: { policy: '2/10s, 3/1h' }
  - key: login
    rate_limit: { policy: 1/10s, counting: attempts }
  - key: never
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: free
    rate_limit: { unlimited: true }
  - key: trusted
  - key: tried
    shadow_mode: true
    rate_limit: { unit: week, requests_per_unit: 1 }
  - key: tried_never
    shadow_mode: true
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: huge
    rate_limit: { policy: 4503599627370496/365d }
  - key: strict
    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: whole site }] }
  - key: monthly
    quota_mode: true
    rate_limit: { unit: month, requests_per_unit: 1 }
  - key: yearly
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: window
    rate_limit: { policy: 7/90s }
  - key: coarse
    rate_limit: { policy: 1000/1h~1m }
  - key: coarse_quota
    quota_mode: true
    rate_limit: { policy: 1000/1h~1m }
  - key: hammered
    rate_limit: { policy: '1/10s, 9/1h', counting: attempts }
  - key: a
    rate_limit: { unit: day, requests_per_unit: 9, name: A, replaces: [{ name: B }] }
  - key: b
    rate_limit: { unit: day, requests_per_unit: 1, name: B, replaces: [{ name: C }] }
  - key: c
    rate_limit: { unit: day, requests_per_unit: 1, name: C }
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 1000 }
    metadata: { tier: gold, backend: { name: first, weights: [1, 2.5, -3], spare: null } }
  - key: reserved
    rate_limit: { unit: hour, requests_per_unit: 1000, counting: admitted }
    metadata: { tier: silver, backend: { name: second, region: eu }, 7: true }
  - key: endless
    quota_mode: true
    rate_limit: { unlimited: true }
  - key: tried_quota
    quota_mode: true
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: none_left
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 0 }
    metadata: { tier: never }
";

pub(super) struct Fixture {
    service: Service,
    pub(super) clock: MockClock,
}

pub(super) fn fixture(headers: Headers) -> Fixture {
    fixture_with(Arc::new(MemoryStore::new()), headers)
}

pub(super) fn fixture_over(store: SharedStore) -> Fixture {
    fixture_with(store, Headers::Ratelimit)
}

fn fixture_with(store: SharedStore, headers: Headers) -> Fixture {
    let clock = MockClock::new();
    let store: SharedStore = Arc::new(WithClock::new(store, clock.clone()));
    Fixture {
        service: over(store, headers),
        clock,
    }
}

fn over(store: SharedStore, headers: Headers) -> Service {
    Service::new(
        RuleSet::parse("f", CONFIG.as_bytes(), &store, None).unwrap(),
        Store::over(store),
        headers,
    )
}

/// Returns the request that a text means: `user=ann & site=x +2 & user=bob @9/HOUR`, with costs and limits of descriptors. A `-`
/// asks for a refund.
pub(super) fn request(domain: &str, text: &str, hits_addend: u32) -> RateLimitRequest {
    let descriptors = text
        .split(" & ")
        .filter(|text| !text.is_empty())
        .map(|text| {
            let mut words = text.split(' ');
            let entry = |pair: &str| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Entry {
                    key: key.into(),
                    value: value.into(),
                }
            };
            let entries = words.next().unwrap().split(';').map(entry).collect();
            let mut descriptor = RateLimitDescriptor {
                entries,
                ..Default::default()
            };
            for word in words {
                if word == "-" {
                    descriptor.is_negative_hits = true;
                } else if let Some(hits) = word.strip_prefix('+') {
                    descriptor.hits_addend = Some(hits.parse().unwrap());
                } else {
                    let (max, unit) = word.strip_prefix('@').unwrap().split_once('/').unwrap();
                    let unit = unit
                        .parse()
                        .unwrap_or_else(|_| Unit::from_str_name(unit).unwrap().into());
                    descriptor.limit = Some(RateLimitOverride {
                        requests_per_unit: max.parse().unwrap(),
                        unit,
                    });
                }
            }
            descriptor
        });
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.collect(),
        hits_addend,
    }
}

/// Returns an answer as text: the code, then of each descriptor the code, the limit, what remains, and the duration in µs.
fn text(answer: &RateLimitResponse) -> String {
    let code = |code: Code| match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
        Code::Unknown => "?",
    };
    let mut out = code(answer.overall_code()).to_owned();
    for status in &answer.statuses {
        write!(out, " | {}", code(status.code())).unwrap();
        if let Some(limit) = &status.current_limit {
            let unit = Unit::try_from(limit.unit).unwrap().as_str_name();
            write!(out, " {} {}/{unit}", limit.name, limit.requests_per_unit).unwrap();
        }
        write!(out, " {}", status.limit_remaining).unwrap();
        if let Some(duration) = &status.duration_until_reset {
            write!(
                out,
                " {}",
                duration.seconds * 1_000_000 + i64::from(duration.nanos / 1_000)
            )
            .unwrap();
        }
    }
    out
}

impl Fixture {
    pub(super) async fn ask(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Failure> {
        self.service.decide(request, None).await
    }

    /// Asks line by line: the time before it, if any, then the request, and the answer.
    async fn check(&self, lines: &str) {
        for (asked, expected) in rows(lines) {
            let (after, asked) = asked.split_once(": ").unwrap_or(("", asked));
            if !after.is_empty() {
                let after = after.parse::<Window>().unwrap();
                self.clock.advance(after.as_duration());
            }
            let answer = self.ask(&request("d", asked, 0)).await.unwrap();
            assert_eq!(text(&answer), expected, "{asked}");
            assert_fields(&answer);
        }
    }
}

/// The field `ratelimit` and the statuses agree on what remains. Rules with several limits have names with a window.
pub(super) fn assert_fields(answer: &RateLimitResponse) {
    let mut fields = answer.response_headers_to_add.iter();
    let Some(field) = fields.find(|field| field.key == "ratelimit") else {
        return;
    };
    let items: Vec<&str> = field.value.split(", ").collect();
    let mut seen = answer.statuses.iter().filter_map(|status| {
        let name = &status.current_limit.as_ref()?.name;
        Some((format!("\"{name}\";r"), status.limit_remaining))
    });
    for item in items.iter().filter(|item| !item.contains('-')) {
        let (name, remaining) = item.split(";t=").next().unwrap().rsplit_once('=').unwrap();
        let remaining = remaining.parse::<u64>().unwrap().try_into();
        let said =
            |(other, left): (String, u32)| name == other && left == remaining.unwrap_or(u32::MAX);
        assert!(seen.any(said), "{item} in {answer:?}");
    }
}

#[tokio::test]
async fn windows_roll_and_answers_say_what_is_left() {
    let lines = "
        user=ann => OK | OK user 3/MINUTE 2 60000000
        20s: user=ann => OK | OK user 3/MINUTE 1 40000000
        15s: user=ann => OK | OK user 3/MINUTE 0 25000000
        1s: user=ann => OVER | OVER user 3/MINUTE 0 24000000
        user=bob => OK | OK user 3/MINUTE 2 60000000
        23999999us: user=ann => OVER | OVER user 3/MINUTE 0 1
        1us: user=ann => OK | OK user 3/MINUTE 0 20000000
    ";
    fixture(Headers::Ratelimit).check(lines).await;
}

#[tokio::test]
async fn each_kind_of_rule_has_its_answer() {
    let lines = "
        // No rule, and rules without limits.
        nobody=x => OK | OK 0
        user => OK | OK user 3/MINUTE 2 60000000
        free=x => OK | OK 4294967295
        trusted=x => OK | OK 0
        never=x => OVER | OVER never 0/UNKNOWN 0
        // Names, units, and windows that are no unit.
        site=x => OK | OK whole site 5/SECOND 4 1000000
        strict=x => OK | OK strict 1/DAY 0 86400000000
        window=x => OK | OK window 7/UNKNOWN 6 90000000
        // The binding limit of two.
        two=x => OK | OK two 2/UNKNOWN 1 10000000
        two=x => OK | OK two 2/UNKNOWN 0 10000000
        two=x => OVER | OVER two 2/UNKNOWN 0 10000000
        10s: two=x => OK | OK two 3/HOUR 0 3590000000
        two=x => OVER | OVER two 3/HOUR 0 3590000000
        // Numbers saturate.
        huge=x => OK | OK huge 4294967295/YEAR 4294967295 31536000000000
        // Shadow mode: counted, never denied.
        tried=x => OK | OK tried 1/WEEK 0 604800000000
        1s: tried=x => OK | OK tried 1/WEEK 0 604799000000
        tried_never=x => OK | OK tried_never 0/UNKNOWN 0
        // Every attempt counts.
        login=x => OK | OK login 1/UNKNOWN 0 10000000
        5s: login=x => OVER | OVER login 1/UNKNOWN 0 10000000
        9s: login=x => OVER | OVER login 1/UNKNOWN 0 10000000
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    let rules = fixture.service.rules();
    let rule = |path: &str| rules.iter().find(|rule| rule.path == path).unwrap();
    let count = |path: &str| {
        let counts = &rule(path).counts;
        [
            counts.allowed.load(Relaxed),
            counts.denied.load(Relaxed),
            counts.shadow_denied.load(Relaxed),
        ]
    };
    for (path, counts) in [
        ("two", [3, 2, 0]),
        ("tried", [1, 0, 1]),
        ("tried_never", [0, 0, 1]),
        ("never", [0, 1, 0]),
        ("free", [1, 0, 0]),
        ("login", [1, 2, 0]),
    ] {
        assert_eq!(count(path), counts, "{path}");
    }
    let denied = fixture.service.denied();
    let shown = |count| {
        let latest = denied.latest(count);
        let shown = latest
            .iter()
            .map(|key| format!("{} {}", key.rule.path, key.times));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(shown(9), ["login 2", "two 2", "never 1"]);
    denied.forget(rule("two"), b"x");
    denied.forget(rule("two"), b"never denied");
    assert_eq!(shown(9), ["login 2", "never 1"]);
    assert_eq!(shown(1), ["login 2"]);
}

#[tokio::test]
async fn if_one_descriptor_is_over_its_limit_none_is_charged() {
    let lines = "
        user=ann +3 & site=x => OK | OK user 3/MINUTE 0 60000000 | OK whole site 5/SECOND 4 1000000
        site=x & user=ann => OVER | OK whole site 5/SECOND 4 1000000 | OVER user 3/MINUTE 0 60000000
        site=x & never=x => OVER | OK whole site 5/SECOND 4 1000000 | OVER never 0/UNKNOWN 0
        site=x & user=bob +4 => OVER | OK whole site 5/SECOND 4 1000000 | OVER user 3/MINUTE 0
        nobody=x & site=x & free=x & user=ann => OVER | OK 0 | OK whole site 5/SECOND 4 1000000 | OK 4294967295 | OVER user 3/MINUTE 0 60000000
        // Rules in shadow mode are asked last and charged only with the others.
        tried=x & user=ann => OVER | OK tried 1/WEEK 1 0 | OVER user 3/MINUTE 0 60000000
        tried=x & site=x => OK | OK tried 1/WEEK 0 604800000000 | OK whole site 5/SECOND 3 1000000
        tried=x & site=x => OK | OK tried 1/WEEK 0 604800000000 | OK whole site 5/SECOND 2 1000000
        // One rule twice, with other keys and with the same.
        user=cy & user=di => OK | OK user 3/MINUTE 2 60000000 | OK user 3/MINUTE 2 60000000
        user=cy & user=cy => OK | OK user 3/MINUTE 0 60000000 | OK user 3/MINUTE 0 60000000
        user=di & user=di & user=di => OVER | OVER user 3/MINUTE 2 60000000 | OVER user 3/MINUTE 2 60000000 | OVER user 3/MINUTE 2 60000000
        user=di & user=di => OK | OK user 3/MINUTE 0 60000000 | OK user 3/MINUTE 0 60000000
        // Together above the maximum, and looks, which take nothing.
        user=ed & user=ed +2 & user=ed +2 => OVER | OK user 3/MINUTE 0 60000000 | OVER user 3/MINUTE 0 | OVER user 3/MINUTE 0
        user=fi & user=fi & user=fi & user=fi => OVER | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3
        user=fi +0 & user=fi +0 & user=fi +0 & user=fi +0 => OK | OK user 3/MINUTE 3 0 | OK user 3/MINUTE 3 0 | OK user 3/MINUTE 3 0 | OK user 3/MINUTE 3 0
        tried=fi & tried=fi & user=fi => OK | OK tried 1/WEEK 1 | OK tried 1/WEEK 1 | OK user 3/MINUTE 2 60000000
        // A charge that stays beside one that is refunded, and limits of one log.
        site=k & site=k +1 & user=ann => OVER | OK whole site 5/SECOND 4 1000000 | OK whole site 5/SECOND 4 1000000 | OVER user 3/MINUTE 0 60000000
        user=eve @5/HOUR +4 => OK | OK user 5/HOUR 1 3600000000
        user=eve @5/HOUR & user=eve @2/HOUR => OVER | OK user 5/HOUR 1 3600000000 | OVER user 2/HOUR 0 3600000000
        // A rule that replaces another one.
        site=x & strict=x => OK | OK 0 | OK strict 1/DAY 0 86400000000
        site=x => OK | OK whole site 5/SECOND 1 1000000
        // Rules that replace each other, in any order. A dropped rule still replaces others.
        a=x & b=x & c=x => OK | OK A 9/DAY 8 86400000000 | OK 0 | OK 0
        b=x & a=x & c=x => OK | OK 0 | OK A 9/DAY 7 86400000000 | OK 0
        c=x & a=x & b=x => OK | OK 0 | OK A 9/DAY 6 86400000000 | OK 0
        c=x & b=x & a=x => OK | OK 0 | OK 0 | OK A 9/DAY 5 86400000000
        b=x & c=x => OK | OK B 1/DAY 0 86400000000 | OK 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    let rules = fixture.service.rules();
    let site = rules.iter().find(|rule| rule.path == "site").unwrap();
    // A request that another rule denied counts neither as allowed nor as denied.
    assert_eq!(
        (
            site.counts.allowed.load(Relaxed),
            site.counts.denied.load(Relaxed)
        ),
        (4, 0)
    );
}

#[tokio::test]
async fn quotas_deny_only_together() {
    let lines = "
        monthly=x => OK | OK monthly 1/MONTH 0 2592000000000
        monthly=x & yearly=x => OK | OVER monthly 1/MONTH 0 2592000000000 | OK yearly 2/YEAR 1 31536000000000
        monthly=x & user=ann => OVER | OVER monthly 1/MONTH 0 2592000000000 | OK user 3/MINUTE 3 0
        monthly=x & yearly=x +0 => OK | OVER monthly 1/MONTH 0 2592000000000 | OK yearly 2/YEAR 1 31536000000000
        monthly=x & yearly=x => OK | OVER monthly 1/MONTH 0 2592000000000 | OK yearly 2/YEAR 0 31536000000000
        user=ann & monthly=x & yearly=x => OVER | OK user 3/MINUTE 3 0 | OVER monthly 1/MONTH 0 2592000000000 | OVER yearly 2/YEAR 0 31536000000000
        // A rule without a limit is not one of the quotas.
        endless=x & monthly=x => OVER | OK 4294967295 | OVER monthly 1/MONTH 0 2592000000000
        // A quota in shadow mode is never spent, as in Envoy's service.
        monthly=x & tried_quota=x => OK | OVER monthly 1/MONTH 0 2592000000000 | OK tried_quota 1/DAY 0 86400000000
        monthly=x & tried_quota=x => OK | OVER monthly 1/MONTH 0 2592000000000 | OK tried_quota 1/DAY 0 86400000000
        // A request that can never fit hides neither a spent quota nor a denial in shadow mode.
        never=x & monthly=x => OVER | OVER never 0/UNKNOWN 0 | OVER monthly 1/MONTH 0 2592000000000
        monthly=x +0 & user=ann +4 => OVER | OVER monthly 1/MONTH 0 2592000000000 | OVER user 3/MINUTE 0
        // With a quota that never fits, a refunded charge shows nowhere.
        user=bob & none_left=x => OVER | OK user 3/MINUTE 3 0 | OVER none_left 0/UNKNOWN 0
        none_left=x & site=bob & two=bob & yearly=x => OVER | OVER none_left 0/UNKNOWN 0 | OK whole site 5/SECOND 5 0 | OK two 2/UNKNOWN 2 0 | OVER yearly 2/YEAR 0 31536000000000
        tried=x => OK | OK tried 1/WEEK 0 604800000000
        never=x & tried=x => OVER | OVER never 0/UNKNOWN 0 | OK tried 1/WEEK 0 604800000000
        tried=x & user=ann +4 => OVER | OK tried 1/WEEK 0 604800000000 | OVER user 3/MINUTE 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    let rules = fixture.service.rules();
    let tried = rules.iter().find(|rule| rule.path == "tried").unwrap();
    assert_eq!(
        (
            tried.counts.allowed.load(Relaxed),
            tried.counts.shadow_denied.load(Relaxed)
        ),
        (1, 2)
    );
}

#[tokio::test]
async fn costs_are_those_of_the_request_or_the_descriptor() {
    let fixture = fixture(Headers::None);
    // The request's cost comes first.
    let lines = "
        0 site=a => OK | OK whole site 5/SECOND 4 1000000
        2 site=a => OK | OK whole site 5/SECOND 2 1000000
        2 site=a +1 => OK | OK whole site 5/SECOND 1 1000000
        2 site=a => OVER | OVER whole site 5/SECOND 1 1000000
        // An explicit 0 looks whether one more would fit.
        2 site=a +0 => OK | OK whole site 5/SECOND 1 1000000
        1 site=a => OK | OK whole site 5/SECOND 0 1000000
        0 site=a +0 => OVER | OVER whole site 5/SECOND 0 1000000
        0 site=new +0 => OK | OK whole site 5/SECOND 5 0
        // A request that never fits has no duration.
        6 site=b => OVER | OVER whole site 5/SECOND 5
        0 site=b +18446744073709551615 => OVER | OVER whole site 5/SECOND 0
        3 two=b => OVER | OVER two 2/UNKNOWN 2
        4294967295 huge=b => OK | OK huge 4294967295/YEAR 4294967295 31536000000000
        9 tried=b => OK | OK tried 1/WEEK 1
        9 free=b & trusted=b & nobody=b => OK | OK 4294967295 | OK 0 | OK 0
    ";
    for (asked, expected) in rows(lines) {
        let (hits, descriptors) = asked.split_once(' ').unwrap();
        let request = request("d", descriptors, hits.parse().unwrap());
        let answer = fixture.ask(&request).await.unwrap();
        assert_eq!(text(&answer), expected, "{asked}");
    }
}

#[tokio::test]
async fn a_charge_of_a_descriptor_counts_in_any_case() {
    let lines = "
        // A look before the request, and the charge after the response.
        tokens=a +0 => OK | OK tokens 1000/HOUR 1000 0
        tokens=a +600 => OK | OK tokens 1000/HOUR 400 3600000000
        tokens=a +0 => OK | OK tokens 1000/HOUR 400 3600000000
        1s: tokens=a +600 => OVER | OVER tokens 1000/HOUR 0 3600000000
        tokens=a +0 => OVER | OVER tokens 1000/HOUR 0 3599000000
        3599s: tokens=a +0 => OK | OK tokens 1000/HOUR 400 1000000
        // Above the maximum.
        tokens=b +1200 => OVER | OVER tokens 1000/HOUR 0
        tokens=b +0 => OVER | OVER tokens 1000/HOUR 0 3600000000
        tokens=c +18446744073709551615 => OVER | OVER tokens 1000/HOUR 0
        tokens=c +0 => OVER | OVER tokens 1000/HOUR 0 3600000000
        // Regardless of the other descriptors, whose own requests are not charged.
        tokens=d +300 & never=x & user=d => OVER | OK tokens 1000/HOUR 700 3600000000 | OVER never 0/UNKNOWN 0 | OK user 3/MINUTE 3 0
        user=d & tokens=d +300 & tokens=b +1 => OVER | OK user 3/MINUTE 3 0 | OK tokens 1000/HOUR 400 3600000000 | OVER tokens 1000/HOUR 0 3600000000
        user=d & tokens=d +1001 => OVER | OK user 3/MINUTE 3 0 | OVER tokens 1000/HOUR 0
        user=d & site=d => OK | OK user 3/MINUTE 2 60000000 | OK whole site 5/SECOND 4 1000000
        site=d & monthly=d +2 => OVER | OK whole site 5/SECOND 4 1000000 | OVER monthly 1/MONTH 0
        // In shadow mode, and with its own limit.
        tried=d +9 => OK | OK tried 1/WEEK 0
        tried=d +0 => OK | OK tried 1/WEEK 0 604800000000
        user=d @5/HOUR +3 => OK | OK user 5/HOUR 2 3600000000
        user=d @5/HOUR +3 => OVER | OVER user 5/HOUR 0 3600000000
        user=e @5/HOUR +6 => OVER | OVER user 5/HOUR 0
        user=e @5/HOUR +0 => OVER | OVER user 5/HOUR 0 3600000000
        free=d @5/HOUR +6 => OVER | OVER =override 5/HOUR 0
        free=d @5/HOUR => OVER | OVER =override 5/HOUR 0 3600000000
        // A rule that counts attempts also counts these. A rule with `admitted` counts no denied request.
        login=d +2 => OVER | OVER login 1/UNKNOWN 0
        login=d +0 => OVER | OVER login 1/UNKNOWN 0 10000000
        reserved=d +600 => OK | OK reserved 1000/HOUR 400 3600000000
        reserved=d +600 => OVER | OVER reserved 1000/HOUR 400 3600000000
        reserved=d +1200 => OVER | OVER reserved 1000/HOUR 400
        reserved=d @9/HOUR +10 => OVER | OVER reserved 9/HOUR 9
        reserved=d +400 & never=x => OVER | OK reserved 1000/HOUR 400 3600000000 | OVER never 0/UNKNOWN 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    // Requests in turn.
    for (key, used, expected) in [("two", 600, 2), ("one", 1_200, 1), ("all", 100, 10)] {
        let mut served = 0;
        for _ in 0..10 {
            let look = request("d", &format!("tokens={key} +0"), 0);
            if fixture.ask(&look).await.unwrap().overall_code() == Code::Ok {
                served += 1;
                let charge = request("d", &format!("tokens={key} +{used}"), 0);
                fixture.ask(&charge).await.unwrap();
            }
        }
        assert_eq!(served, expected, "{used} each");
    }
}

#[tokio::test]
async fn metadata_of_the_rules_that_do_not_deny_is_merged() {
    let tokens =
        r#""tier":"gold","backend":{"name":"first","weights":[1.0,2.5,-3.0],"spare":null}"#;
    let both = r#""tier":"gold","7":true,"backend":{"name":"first","weights":[1.0,2.5,-3.0],"spare":null,"region":"eu"}"#;
    let reserved = r#""tier":"silver","7":true,"backend":{"name":"second","region":"eu"}"#;
    let fixture = fixture(Headers::None);
    for (asked, expected) in [
        ("user=ann & free=x & nobody=x", None),
        ("tokens=x", Some(tokens)),
        ("tokens=x & reserved=x", Some(both)),
        ("never=x & tokens=x", Some(tokens)),
        ("tokens=x +1001 & reserved=x", Some(reserved)),
        ("none_left=x & reserved=x & monthly=x", Some(reserved)),
        ("none_left=x", None),
    ] {
        let answer = fixture.ask(&request("d", asked, 0)).await.unwrap();
        let answer = serde_json::to_value(answer).unwrap();
        let expected = expected.map(|text| format!("{{\"metadata\":{{{text}}}}}"));
        let expected =
            expected.map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap());
        assert_eq!(answer.get("dynamicMetadata"), expected.as_ref(), "{asked}");
    }
}

#[tokio::test]
async fn hits_stay_at_their_maximum() {
    let fixture = fixture(Headers::None);
    let rules = fixture.service.rules();
    let free = rules.iter().find(|rule| rule.path == "free").unwrap();
    free.counts.hits.store(u64::MAX - 1, Relaxed);
    fixture.ask(&request("d", "free=x +2", 0)).await.unwrap();
    assert_eq!(free.counts.hits.load(Relaxed), u64::MAX);
}

#[tokio::test]
async fn a_descriptor_can_bring_its_own_limit() {
    let lines = "
        user=ann @5/HOUR => OK | OK user 5/HOUR 4 3600000000
        // It counts in a separate log for each unit, which outlives a change of the number.
        user=ann => OK | OK user 3/MINUTE 2 60000000
        user=ann @2/HOUR => OK | OK user 2/HOUR 0 3600000000
        user=ann @2/HOUR => OVER | OVER user 2/HOUR 0 3600000000
        user=ann @0/HOUR => OVER | OVER user 0/UNKNOWN 0
        user=ann @2/HOUR +3 => OVER | OVER user 2/HOUR 0
        // Where no rule has a limiter, and where none matches.
        free=x @1/DAY => OK | OK =override 1/DAY 0 86400000000
        free=x @1/DAY => OVER | OVER =override 1/DAY 0 86400000000
        free=y @1/DAY & nobody=x @1/MONTH => OK | OK =override 1/DAY 0 86400000000 | OK =override 1/MONTH 0 2592000000000
        nobody=x @1/MONTH => OVER | OVER =override 1/MONTH 0 2592000000000
        nobody=x;a=b @1/YEAR => OK | OK =override 1/YEAR 0 31536000000000
        never=x @4/SECOND => OK | OK =override 4/SECOND 3 1000000
        // A charge above the rule's own limit is also refunded.
        reserved=bob @1200/DAY +1100 & free=x @1/DAY => OVER | OK reserved 1200/DAY 1200 0 | OVER =override 1/DAY 0 86400000000
        reserved=bob @1200/DAY +1200 => OK | OK reserved 1200/DAY 0 86400000000
        nobody=z @0/SECOND => OVER | OVER =override 0/UNKNOWN 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    let elsewhere = fixture
        .ask(&request("elsewhere", "user=ann @1/DAY", 0))
        .await
        .unwrap();
    assert_eq!(text(&elsewhere), "OK | OK 0");
}

#[tokio::test]
async fn requests_without_sense_are_refused() {
    let fixture = fixture(Headers::None);
    let lines = "
        d| => descriptors is empty, expected at least one
        |user=ann => domain is empty, expected the name of a domain
        d|MANY => 1001 descriptors, expected at most 1000
        d|user=ann & user=bob @1/UNKNOWN => descriptors[1].limit.unit is 0, expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
        d|user=ann - => descriptors[0].is_negative_hits: not supported; POST a receipt to /v1/refund instead
        d|user=ann @1/99 => descriptors[0].limit.unit is 99, expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
    ";
    let lines = lines.replace("MANY", &vec!["user=ann"; MAX_DESCRIPTORS + 1].join(" & "));
    for (asked, reason) in rows(&lines) {
        let (domain, asked) = asked.split_once('|').unwrap();
        let failure = fixture.ask(&request(domain, asked, 0)).await.unwrap_err();
        let is_expected = matches!(&failure, Failure::Invalid(text) if text == reason);
        assert!(is_expected, "{failure:?}");
    }
    let most = vec!["nobody=x"; MAX_DESCRIPTORS].join(" & ");
    let answer = fixture.ask(&request("d", &most, 0)).await.unwrap();
    assert_eq!(answer.statuses.len(), MAX_DESCRIPTORS);
    let unknown = request("elsewhere", "user=ann", 0);
    let unknown = fixture.ask(&unknown).await.unwrap();
    assert_eq!(text(&unknown), "OK | OK 0");
}

#[tokio::test]
async fn header_fields_are_in_the_chosen_form() {
    let asked = [
        "user=ann +2 & two=x",
        "user=ann +2 & two=x",
        "free=x",
        "tried=x",
        "never=x",
        "user=ann +4",
        "site=x;y",
    ];
    let fields = |answer: &RateLimitResponse| {
        let fields = answer
            .response_headers_to_add
            .iter()
            .map(|field| format!("{}: {}", field.key, field.value));
        fields.collect::<Vec<_>>().join("; ")
    };
    let policy = r#"ratelimit-policy: "user";q=3;w=60, "two-10s";q=2;w=10, "two-1h";q=3;w=3600"#;
    let own = r#"ratelimit-policy: "user";q=3;w=60; ratelimit: "user";r=0;t=60"#;
    let structured = [
        format!(r#"{policy}; ratelimit: "user";r=1;t=60, "two-10s";r=1;t=10, "two-1h";r=2;t=3600"#),
        format!(
            r#"{policy}; ratelimit: "user";r=0;t=60, "two-10s";r=1;t=10, "two-1h";r=2;t=3600; retry-after: 60"#
        ),
        String::new(),
        String::new(),
        String::new(),
        own.to_owned(),
        String::new(),
    ];
    let legacy = [
        "ratelimit-limit: 3; ratelimit-remaining: 1; ratelimit-reset: 60",
        "ratelimit-limit: 3; ratelimit-remaining: 0; ratelimit-reset: 60; retry-after: 60",
        "",
        "",
        "",
        "ratelimit-limit: 3; ratelimit-remaining: 0; ratelimit-reset: 60",
        "",
    ]
    .map(str::to_owned);
    let prefixed = |fields: String| fields.replace("ratelimit-", "x-ratelimit-");
    for (form, expected) in [
        (Headers::Ratelimit, structured),
        (Headers::XRatelimit, legacy.clone().map(prefixed)),
        (Headers::Legacy, legacy),
        (Headers::None, Default::default()),
    ] {
        let fixture = fixture(form);
        for (asked, expected) in asked.iter().zip(expected) {
            let answer = fixture.ask(&request("d", asked, 0)).await.unwrap();
            assert_eq!(fields(&answer), expected, "{form:?}: {asked}");
        }
    }
}

#[tokio::test]
async fn a_log_under_a_resolution_stays_small() {
    // 250 seconds are parts of at most six minutes.
    for (asked, path) in [
        ("coarse=x", "coarse"),
        ("coarse=x & nobody=x", "coarse"),
        ("site=x & coarse=x", "coarse"),
        ("coarse=x & tried_never=x", "coarse"),
        ("coarse_quota=x & yearly=x", "coarse_quota"),
        ("coarse=x & site=x", "coarse"),
        ("coarse=x & coarse_quota=x", "coarse"),
    ] {
        let memory = Arc::new(MemoryStore::new());
        let clock = MockClock::new();
        let store: SharedStore = Arc::new(WithClock::new(Arc::clone(&memory), clock.clone()));
        let service = over(store, Headers::None);
        let asked = request("d", asked, 0);
        for _ in 0..1_000 {
            clock.advance(Duration::from_millis(250));
            let answer = service.decide(&asked, None).await.unwrap();
            assert_eq!(answer.overall_code(), Code::Ok);
        }
        let entries = memory.entries(LogKey {
            name: format!("d/{path}").into(),
            key: b"x",
        });
        assert!((3..=6).contains(&entries), "{path}: {entries} entries");
    }
}

/// Returns a service over a store that fails by rule, and what waits until `used` units of `site=x` are taken.
fn faulty() -> (Fixture, Faulty<MemoryStore>, impl AsyncFn(u64)) {
    let faulty = Faulty::new(MemoryStore::new());
    let clock = MockClock::new();
    let service = over(
        Arc::new(WithClock::new(faulty.clone(), clock.clone())),
        Headers::None,
    );
    let fixture = Fixture { service, clock };
    let rules = fixture.service.rules();
    let until_used = async move |used| {
        let site = rules
            .iter()
            .find(|rule| rule.path == "site")
            .and_then(|rule| rule.limiter())
            .unwrap();
        let wait = async { while site.status("x").await.unwrap().used() != used {} };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("never {used} used"));
    };
    (fixture, faulty, until_used)
}

#[tokio::test]
async fn a_denial_waits_for_its_refunds() {
    let (fixture, faulty, until_used) = faulty();
    fixture
        .check("user=ann +3 & site=x => OK | OK user 3/MINUTE 0 60000000 | OK whole site 5/SECOND 4 1000000")
        .await;
    faulty.rule(|verb, _| {
        if verb == "settle" {
            Does::Hold
        } else {
            Does::Answer
        }
    });
    let over = "OVER | OK whole site 5/SECOND 4 1000000 | OVER user 3/MINUTE 0 60000000";
    let asked = request("d", "site=x & user=ann", 0);
    let mut decision = Box::pin(fixture.ask(&asked));
    while faulty.calls_to("settle") == 0 {
        assert!(decision.as_mut().now_or_never().is_none());
    }
    until_used(2).await;
    faulty.set(Does::Answer);
    assert_eq!(text(&decision.await.unwrap()), over);
    until_used(1).await;
}

#[tokio::test]
async fn a_dropped_request_leaves_what_was_charged_by_then() {
    let (fixture, faulty, until_used) = faulty();
    for (held, left) in [(b"x", 0), (b"y", 1)] {
        faulty.rule(move |verb, log| {
            if verb == "acquire" && log.key == held {
                Does::Hold
            } else {
                Does::Answer
            }
        });
        let calls = faulty.calls_to("acquire");
        let asked = request("d", "site=x & site=y", 0);
        let mut decision = Box::pin(fixture.ask(&asked));
        while faulty.calls_to("acquire") <= calls + usize::from(held == b"y") {
            assert!(decision.as_mut().now_or_never().is_none());
        }
        drop(decision);
        faulty.set(Does::Answer);
        until_used(left).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_outage_choice_decides_before_the_caller_gives_up() {
    let asked = request("d", "window=a & window=b & coarse=a & coarse=b & huge=a", 0);
    // The header grpc-timeout, the flag, and the longest decision, both in milliseconds. Without a timeout, the store's
    // own of 300 ms ends each of five calls.
    for (header, flag, longest) in [
        ("20m", None, 15),
        ("20000u", None, 15),
        ("20000000n", None, 15),
        ("8m", Some(40), 6),
        ("", Some(40), 30),
        ("99999999S", Some(40), 1_500),
        // Not a timeout.
        ("x", Some(40), 30),
        ("000000020m", Some(40), 30),
        ("20", None, 1_500),
        ("", None, 1_500),
    ] {
        let faulty = Faulty::new(MemoryStore::new());
        faulty.set(Does::Hang);
        let store = Arc::new(Guarded::builder(faulty).fallback(MemoryStore::new()));
        let service =
            over(store, Headers::None).with_caller_timeout(flag.map(Duration::from_millis));
        let mut message = Request::new(asked.clone());
        if !header.is_empty() {
            message
                .metadata_mut()
                .insert("grpc-timeout", header.parse().unwrap());
        }
        let began = Instant::now();
        let answer = Grpc::new(Arc::new(service))
            .should_rate_limit(message)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.overall_code(), Code::Ok);
        let took = began.elapsed().as_millis();
        assert!(
            (longest * 3 / 4..=longest).contains(&took),
            "{header}, {flag:?}: {took} ms"
        );
    }
}

#[tokio::test]
async fn a_failed_store_fails_the_request_but_not_a_shadow() {
    let (fixture, faulty, until_used) = faulty();
    faulty.rule(|_, log| match log.name.as_str() {
        "d/site" => Does::Answer,
        _ => Does::Refuse,
    });
    for (asked, expected) in [
        ("tried=x", Some("OK | OK 0")),
        ("tried_quota=x", Some("OK | OK 0")),
        ("free=x", Some("OK | OK 4294967295")),
        ("user=ann", None),
        ("monthly=x", None),
        ("site=x & monthly=x", None),
    ] {
        match (fixture.ask(&request("d", asked, 0)).await, expected) {
            (Ok(answer), Some(expected)) => assert_eq!(text(&answer), expected),
            (Err(Failure::Store(error)), None) => assert_eq!(error.kind(), ErrorKind::Unavailable),
            (answer, _) => panic!("{asked}: {answer:?}"),
        }
    }
    until_used(0).await;
}
