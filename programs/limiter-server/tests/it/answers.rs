//! What Envoy is told: one table for each part of the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use futures_util::FutureExt;
use http::Request;
use limiter_core::store::LogKey;
use limiter_core::{ErrorKind, SharedStore, WithClock};
use limiter_memory::MemoryStore;
use limiter_server::grpc::Grpc;
use limiter_server::http::routes;
use limiter_server::proto::{Code, RateLimitService};
use limiter_server::rules::{Rule, RuleSet};
use limiter_server::service::{Failure, Headers, Service};
use limiter_server::store::Store;
use limiter_testkit::MockClock;
use limiter_wrappers::Guarded;
use serde_json::Value;
use testbed::{Does, Faulty};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::ask::{Answers, decided, rows, text};
use crate::client::PATIENCE;

pub(crate) const CONFIG: &str = "
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

/// A service without listeners, by a clock that stands still.
pub(crate) struct Fixture {
    pub(crate) service: Arc<Service>,
    pub(crate) routes: Router,
    pub(crate) clock: MockClock,
}

/// Returns a fixture with the rules of [`CONFIG`].
pub(crate) fn fixture(headers: Headers) -> Fixture {
    Fixture::new(CONFIG, Arc::new(MemoryStore::new()), headers)
}

impl Fixture {
    pub(crate) fn new(config: &str, store: SharedStore, headers: Headers) -> Self {
        let clock = MockClock::new();
        let store: SharedStore = Arc::new(WithClock::new(store, clock.clone()));
        let service = Arc::new(over(config, store, headers));
        let routes = routes(Arc::clone(&service), &[]);
        Self {
            service,
            routes,
            clock,
        }
    }

    fn rule(&self, path: &str) -> Arc<Rule> {
        let rules = self.service.rules();
        Arc::clone(rules.iter().find(|rule| rule.path == path).unwrap())
    }

    /// Returns how many requests a rule allowed, denied, and would have denied.
    fn counts(&self, path: &str) -> [u64; 3] {
        let rule = self.rule(path);
        let counts = [
            &rule.counts.allowed,
            &rule.counts.denied,
            &rule.counts.shadow_denied,
        ];
        counts.map(|count| count.load(Relaxed))
    }
}

impl Answers for Fixture {
    async fn answer(&self, path: &str, body: &str) -> (u16, Value) {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let (head, body) = self
            .routes
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        (
            head.status.as_u16(),
            serde_json::from_slice(&body).unwrap_or_default(),
        )
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

pub(crate) fn over(config: &str, store: SharedStore, headers: Headers) -> Service {
    let rules = RuleSet::parse("f", config.as_bytes(), &store, None).unwrap();
    Service::new(rules, Store::over(store), headers)
}

#[tokio::test]
async fn each_kind_of_rule_has_its_answer() {
    let lines = "
        // No rule, and rules without limits.
        nobody=x => OK | OK 0
        user => OK | OK user 3/MINUTE 2 60s
        free=x => OK | OK 4294967295
        trusted=x => OK | OK 0
        never=x => OVER | OVER never 0/UNKNOWN 0
        // Names, units, and windows that are no unit.
        site=x => OK | OK whole site 5/SECOND 4 1s
        strict=x => OK | OK strict 1/DAY 0 86400s
        window=x => OK | OK window 7/UNKNOWN 6 90s
        // The binding limit of two.
        two=x => OK | OK two 2/UNKNOWN 1 10s
        two=x => OK | OK two 2/UNKNOWN 0 10s
        two=x => OVER | OVER two 2/UNKNOWN 0 10s
        9999999us: two=x => OVER | OVER two 2/UNKNOWN 0 0.000001s
        1us: two=x => OK | OK two 3/HOUR 0 3590s
        two=x => OVER | OVER two 3/HOUR 0 3590s
        // Numbers saturate.
        huge=x => OK | OK huge 4294967295/YEAR 4294967295 31536000s
        // Shadow mode: counted, never denied.
        tried=x => OK | OK tried 1/WEEK 0 604800s
        1s: tried=x => OK | OK tried 1/WEEK 0 604799s
        tried_never=x => OK | OK tried_never 0/UNKNOWN 0
        // Every attempt counts.
        login=x => OK | OK login 1/UNKNOWN 0 10s
        5s: login=x => OVER | OVER login 1/UNKNOWN 0 10s
        9s: login=x => OVER | OVER login 1/UNKNOWN 0 10s
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    for (path, counts) in [
        ("two", [3, 3, 0]),
        ("tried", [1, 0, 1]),
        ("tried_never", [0, 0, 1]),
        ("never", [0, 1, 0]),
        ("free", [1, 0, 0]),
        ("login", [1, 2, 0]),
    ] {
        assert_eq!(fixture.counts(path), counts, "{path}");
    }
    let denied = fixture.service.denied();
    let shown = |count| {
        let latest = denied.latest(count).into_iter();
        let shown = latest.map(|key| format!("{} {}", key.rule.path, key.times));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(shown(9), ["login 2", "two 3", "never 1"]);
    denied.forget(&fixture.rule("two"), b"x");
    denied.forget(&fixture.rule("two"), b"never denied");
    assert_eq!(shown(9), ["login 2", "never 1"]);
    assert_eq!(shown(1), ["login 2"]);
    // Hits stay at their maximum.
    let free = fixture.rule("free");
    free.counts.hits.store(u64::MAX - 1, Relaxed);
    fixture.check("free=x +2 => OK | OK 4294967295").await;
    assert_eq!(free.counts.hits.load(Relaxed), u64::MAX);
}

#[tokio::test]
async fn if_one_descriptor_is_over_its_limit_none_is_charged() {
    let lines = "
        user=ann +3 & site=x => OK | OK user 3/MINUTE 0 60s | OK whole site 5/SECOND 4 1s
        site=x & user=ann => OVER | OK whole site 5/SECOND 4 1s | OVER user 3/MINUTE 0 60s
        site=x & never=x => OVER | OK whole site 5/SECOND 4 1s | OVER never 0/UNKNOWN 0
        site=x & user=bob +4 => OVER | OK whole site 5/SECOND 4 1s | OVER user 3/MINUTE 0
        nobody=x & site=x & free=x & user=ann => OVER | OK 0 | OK whole site 5/SECOND 4 1s | OK 4294967295 | OVER user 3/MINUTE 0 60s
        // Rules in shadow mode are asked last and charged only with the others.
        tried=x & user=ann => OVER | OK tried 1/WEEK 1 0s | OVER user 3/MINUTE 0 60s
        tried=x & site=x => OK | OK tried 1/WEEK 0 604800s | OK whole site 5/SECOND 3 1s
        tried=x & site=x => OK | OK tried 1/WEEK 0 604800s | OK whole site 5/SECOND 2 1s
        // One rule twice, with other keys and with the same.
        user=cy & user=di => OK | OK user 3/MINUTE 2 60s | OK user 3/MINUTE 2 60s
        user=cy & user=cy => OK | OK user 3/MINUTE 0 60s | OK user 3/MINUTE 0 60s
        user=di & user=di & user=di => OVER | OVER user 3/MINUTE 2 60s | OVER user 3/MINUTE 2 60s | OVER user 3/MINUTE 2 60s
        user=di & user=di => OK | OK user 3/MINUTE 0 60s | OK user 3/MINUTE 0 60s
        // Together above the maximum, and looks, which take nothing.
        user=ed & user=ed +2 & user=ed +2 => OVER | OK user 3/MINUTE 0 60s | OVER user 3/MINUTE 0 | OVER user 3/MINUTE 0
        user=fi & user=fi & user=fi & user=fi => OVER | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3 | OVER user 3/MINUTE 3
        user=fi +0 & user=fi +0 & user=fi +0 & user=fi +0 => OK | OK user 3/MINUTE 3 0s | OK user 3/MINUTE 3 0s | OK user 3/MINUTE 3 0s | OK user 3/MINUTE 3 0s
        tried=fi & tried=fi & user=fi => OK | OK tried 1/WEEK 1 | OK tried 1/WEEK 1 | OK user 3/MINUTE 2 60s
        // A charge that stays beside one that is refunded, and limits of one log.
        site=k & site=k +1 & user=ann => OVER | OK whole site 5/SECOND 4 1s | OK whole site 5/SECOND 4 1s | OVER user 3/MINUTE 0 60s
        user=eve @5/HOUR +4 => OK | OK user 5/HOUR 1 3600s
        user=eve @5/HOUR & user=eve @2/HOUR => OVER | OK user 5/HOUR 1 3600s | OVER user 2/HOUR 0 3600s
        user=gus @5/HOUR +2 & user=gus @5/HOUR & never=x => OVER | OK user 5/HOUR 3 3600s | OK user 5/HOUR 3 3600s | OVER never 0/UNKNOWN 0
        // A rule that replaces another one.
        site=x & strict=x => OK | OK 0 | OK strict 1/DAY 0 86400s
        site=x => OK | OK whole site 5/SECOND 1 1s
        // Rules that replace each other, in any order. A dropped rule still replaces others.
        a=x & b=x & c=x => OK | OK A 9/DAY 8 86400s | OK 0 | OK 0
        b=x & a=x & c=x => OK | OK 0 | OK A 9/DAY 7 86400s | OK 0
        c=x & a=x & b=x => OK | OK 0 | OK A 9/DAY 6 86400s | OK 0
        c=x & b=x & a=x => OK | OK 0 | OK 0 | OK A 9/DAY 5 86400s
        b=x & c=x => OK | OK B 1/DAY 0 86400s | OK 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    // A request that another rule denied counts neither as allowed nor as denied.
    assert_eq!(fixture.counts("site"), [4, 0, 0]);
}

#[tokio::test]
async fn quotas_deny_only_together() {
    let lines = "
        monthly=x => OK | OK monthly 1/MONTH 0 2592000s
        monthly=x & yearly=x => OK | OVER monthly 1/MONTH 0 2592000s | OK yearly 2/YEAR 1 31536000s
        monthly=x & user=ann => OVER | OVER monthly 1/MONTH 0 2592000s | OK user 3/MINUTE 3 0s
        monthly=x & yearly=x +0 => OK | OVER monthly 1/MONTH 0 2592000s | OK yearly 2/YEAR 1 31536000s
        monthly=x & yearly=x => OK | OVER monthly 1/MONTH 0 2592000s | OK yearly 2/YEAR 0 31536000s
        user=ann & monthly=x & yearly=x => OVER | OK user 3/MINUTE 3 0s | OVER monthly 1/MONTH 0 2592000s | OVER yearly 2/YEAR 0 31536000s
        // A rule without a limit is not one of the quotas.
        endless=x & monthly=x => OVER | OK 4294967295 | OVER monthly 1/MONTH 0 2592000s
        // A quota in shadow mode is never spent, as in Envoy's service.
        monthly=x & tried_quota=x => OK | OVER monthly 1/MONTH 0 2592000s | OK tried_quota 1/DAY 0 86400s
        monthly=x & tried_quota=x => OK | OVER monthly 1/MONTH 0 2592000s | OK tried_quota 1/DAY 0 86400s
        // A request that can never fit hides neither a spent quota nor a denial in shadow mode.
        never=x & monthly=x => OVER | OVER never 0/UNKNOWN 0 | OVER monthly 1/MONTH 0 2592000s
        monthly=x +0 & user=ann +4 => OVER | OVER monthly 1/MONTH 0 2592000s | OVER user 3/MINUTE 0
        // With a quota that never fits, a refunded charge shows nowhere.
        user=bob & none_left=x => OVER | OK user 3/MINUTE 3 0s | OVER none_left 0/UNKNOWN 0
        none_left=x & site=bob & two=bob & yearly=x => OVER | OVER none_left 0/UNKNOWN 0 | OK whole site 5/SECOND 5 0s | OK two 2/UNKNOWN 2 0s | OVER yearly 2/YEAR 0 31536000s
        tried=x => OK | OK tried 1/WEEK 0 604800s
        never=x & tried=x => OVER | OVER never 0/UNKNOWN 0 | OK tried 1/WEEK 0 604800s
        tried=x & user=ann +4 => OVER | OK tried 1/WEEK 0 604800s | OVER user 3/MINUTE 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    assert_eq!(fixture.counts("tried"), [1, 0, 2]);
}

#[tokio::test]
async fn costs_are_those_of_the_request_or_the_descriptor() {
    let lines = "
        site=a => OK | OK whole site 5/SECOND 4 1s
        2 * site=a => OK | OK whole site 5/SECOND 2 1s
        2 * site=a +1 => OK | OK whole site 5/SECOND 1 1s
        2 * site=a => OVER | OVER whole site 5/SECOND 1 1s
        // An explicit 0 looks whether one more would fit.
        2 * site=a +0 => OK | OK whole site 5/SECOND 1 1s
        1 * site=a => OK | OK whole site 5/SECOND 0 1s
        site=a +0 => OVER | OVER whole site 5/SECOND 0 1s
        site=new +0 => OK | OK whole site 5/SECOND 5 0s
        // A request that never fits has no duration.
        6 * site=b => OVER | OVER whole site 5/SECOND 5
        site=b +18446744073709551615 => OVER | OVER whole site 5/SECOND 0
        3 * two=b => OVER | OVER two 2/UNKNOWN 2
        4294967295 * huge=b => OK | OK huge 4294967295/YEAR 4294967295 31536000s
        9 * tried=b => OK | OK tried 1/WEEK 1
        // In a refused request, a check asks about one unit, even beside a larger cost on the same log.
        2 * user=c => OK | OK user 3/MINUTE 1 60s
        2 * user=c +0 & user=c & never=c => OVER | OK user 3/MINUTE 1 60s | OVER user 3/MINUTE 1 60s | OVER never 0/UNKNOWN 0
        2 * user=c & user=c +0 & never=c => OVER | OVER user 3/MINUTE 1 60s | OK user 3/MINUTE 1 60s | OVER never 0/UNKNOWN 0
        9 * free=b & trusted=b & nobody=b => OK | OK 4294967295 | OK 0 | OK 0
    ";
    fixture(Headers::None).check(lines).await;
}

#[tokio::test]
async fn a_charge_of_a_descriptor_counts_in_any_case() {
    let lines = "
        // A look before the request, and the charge after the response.
        tokens=a +0 => OK | OK tokens 1000/HOUR 1000 0s
        tokens=a +600 => OK | OK tokens 1000/HOUR 400 3600s
        tokens=a +0 => OK | OK tokens 1000/HOUR 400 3600s
        1s: tokens=a +600 => OVER | OVER tokens 1000/HOUR 0 3600s
        tokens=a +0 => OVER | OVER tokens 1000/HOUR 0 3599s
        3599s: tokens=a +0 => OK | OK tokens 1000/HOUR 400 1s
        // Above the maximum.
        tokens=b +1200 => OVER | OVER tokens 1000/HOUR 0
        tokens=b +0 => OVER | OVER tokens 1000/HOUR 0 3600s
        tokens=c +18446744073709551615 => OVER | OVER tokens 1000/HOUR 0
        tokens=c +0 => OVER | OVER tokens 1000/HOUR 0 3600s
        // Regardless of the other descriptors, whose own requests are not charged.
        tokens=d +300 & never=x & user=d => OVER | OK tokens 1000/HOUR 700 3600s | OVER never 0/UNKNOWN 0 | OK user 3/MINUTE 3 0s
        user=d & tokens=d +300 & tokens=b +1 => OVER | OK user 3/MINUTE 3 0s | OK tokens 1000/HOUR 400 3600s | OVER tokens 1000/HOUR 0 3600s
        user=d & tokens=d +1001 => OVER | OK user 3/MINUTE 3 0s | OVER tokens 1000/HOUR 0
        user=d & site=d => OK | OK user 3/MINUTE 2 60s | OK whole site 5/SECOND 4 1s
        site=d & monthly=d +2 => OVER | OK whole site 5/SECOND 4 1s | OVER monthly 1/MONTH 0
        // In shadow mode, and with its own limit.
        tried=d +9 => OK | OK tried 1/WEEK 0
        tried=d +0 => OK | OK tried 1/WEEK 0 604800s
        user=d @5/HOUR +3 => OK | OK user 5/HOUR 2 3600s
        user=d @5/HOUR +3 => OVER | OVER user 5/HOUR 0 3600s
        user=e @5/HOUR +6 => OVER | OVER user 5/HOUR 0
        user=e @5/HOUR +0 => OVER | OVER user 5/HOUR 0 3600s
        free=d @5/HOUR +6 => OVER | OVER =override 5/HOUR 0
        free=d @5/HOUR => OVER | OVER =override 5/HOUR 0 3600s
        // A rule that counts attempts also counts these. A rule with `admitted` counts no denied request.
        login=d +2 => OVER | OVER login 1/UNKNOWN 0
        login=d +0 => OVER | OVER login 1/UNKNOWN 0 10s
        reserved=d +600 => OK | OK reserved 1000/HOUR 400 3600s
        reserved=d +600 => OVER | OVER reserved 1000/HOUR 400 3600s
        reserved=d +1200 => OVER | OVER reserved 1000/HOUR 400
        reserved=d @9/HOUR +10 => OVER | OVER reserved 9/HOUR 9
        reserved=d +400 & never=x => OVER | OK reserved 1000/HOUR 400 3600s | OVER never 0/UNKNOWN 0
    ";
    fixture(Headers::Ratelimit).check(lines).await;
}

#[tokio::test]
async fn metadata_of_the_rules_that_do_not_deny_is_merged() {
    let lines = r#"
        user=ann & free=x & nobody=x => {"dynamicMetadata": null}
        tokens=x => {"dynamicMetadata": {"metadata": TOKENS}}
        tokens=x & reserved=x => {"dynamicMetadata": {"metadata": BOTH}}
        never=x & tokens=x => 429 {"dynamicMetadata": {"metadata": TOKENS}}
        tokens=x +1001 & reserved=x => 429 {"dynamicMetadata": {"metadata": RESERVED}}
        none_left=x & reserved=x & monthly=x => {"dynamicMetadata": {"metadata": RESERVED}}
        none_left=x => 429 {"dynamicMetadata": null}
    "#;
    let [tokens, both, reserved] = [
        r#"{"tier":"gold","backend":{"name":"first","weights":[1.0,2.5,-3.0],"spare":null}}"#,
        r#"{"tier":"gold","7":true,"backend":{"name":"first","weights":[1.0,2.5,-3.0],"spare":null,"region":"eu"}}"#,
        r#"{"tier":"silver","7":true,"backend":{"name":"second","region":"eu"}}"#,
    ];
    let lines = lines.replace("TOKENS", tokens).replace("BOTH", both);
    let lines = lines.replace("RESERVED", reserved);
    fixture(Headers::None).check(&lines).await;
}

#[tokio::test]
async fn a_descriptor_can_bring_its_own_limit() {
    let lines = "
        user=ann @5/HOUR => OK | OK user 5/HOUR 4 3600s
        // It counts in a separate log for each unit, which outlives a change of the number.
        user=ann => OK | OK user 3/MINUTE 2 60s
        user=ann @2/HOUR => OK | OK user 2/HOUR 0 3600s
        user=ann @2/HOUR => OVER | OVER user 2/HOUR 0 3600s
        user=ann @5/DAY => OK | OK user 5/DAY 4 86400s
        user=ann @0/HOUR => OVER | OVER user 0/UNKNOWN 0
        user=ann @2/HOUR +3 => OVER | OVER user 2/HOUR 0
        // Where no rule has a limiter, and where none matches.
        free=x @1/DAY => OK | OK =override 1/DAY 0 86400s
        free=x @1/DAY => OVER | OVER =override 1/DAY 0 86400s
        free=y @1/DAY & nobody=x @1/MONTH => OK | OK =override 1/DAY 0 86400s | OK =override 1/MONTH 0 2592000s
        nobody=x @1/MONTH => OVER | OVER =override 1/MONTH 0 2592000s
        nobody=x;a=b @1/YEAR => OK | OK =override 1/YEAR 0 31536000s
        never=x @4/SECOND => OK | OK =override 4/SECOND 3 1s
        // A charge above the rule's own limit is also refunded.
        reserved=bob @1200/DAY +1100 & free=x @1/DAY => OVER | OK reserved 1200/DAY 1200 0s | OVER =override 1/DAY 0 86400s
        reserved=bob @1200/DAY +1200 => OK | OK reserved 1200/DAY 0 86400s
        nobody=z @0/SECOND => OVER | OVER =override 0/UNKNOWN 0
    ";
    let fixture = fixture(Headers::Ratelimit);
    fixture.check(lines).await;
    let elsewhere = "user=ann @1/DAY => OK | OK 0";
    fixture.check_in("elsewhere", elsewhere).await;
}

#[tokio::test]
async fn header_fields_are_in_the_chosen_form() {
    let structured = r#"
        user=ann +2 & two=x => POLICY; ratelimit: "user";r=1;t=60, "two-10s";r=1;t=10, "two-1h";r=2;t=3600
        user=ann +2 & two=x => POLICY; ratelimit: "user";r=0;t=60, "two-10s";r=1;t=10, "two-1h";r=2;t=3600; retry-after: 60
        free=x =>
        tried=x =>
        never=x =>
        user=ann +4 => ratelimit-policy: "user";q=3;w=60; ratelimit: "user";r=0;t=60
        site=x;y =>
    "#;
    let policy = r#"ratelimit-policy: "user";q=3;w=60, "two-10s";q=2;w=10, "two-1h";q=3;w=3600"#;
    let structured = structured.replace("POLICY", policy);
    let legacy = "
        user=ann +2 & two=x => ratelimit-limit: 3; ratelimit-remaining: 1; ratelimit-reset: 60
        user=ann +2 & two=x => ratelimit-limit: 3; ratelimit-remaining: 0; ratelimit-reset: 60; retry-after: 60
        free=x =>
        user=ann +4 => ratelimit-limit: 3; ratelimit-remaining: 0; ratelimit-reset: 60
        site=x;y =>
    ";
    for (form, lines) in [
        (Headers::Ratelimit, &*structured),
        (
            Headers::XRatelimit,
            &legacy.replace("ratelimit-", "x-ratelimit-"),
        ),
        (Headers::Legacy, legacy),
        (Headers::None, "user=ann +2 & two=x =>"),
    ] {
        let fixture = fixture(form);
        for (asked, expected) in rows(lines) {
            let answer = fixture.service.decide(&decided(asked), None).await.unwrap();
            let fields = answer.response_headers_to_add.iter();
            let fields = fields.map(|field| format!("{}: {}", field.key, field.value));
            let fields = fields.collect::<Vec<_>>().join("; ");
            assert_eq!(fields, expected, "{form:?}: {asked}");
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
        let service = over(CONFIG, store, Headers::None);
        let asked = decided(asked);
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
    let fixture = Fixture::new(CONFIG, Arc::new(faulty.clone()), Headers::None);
    let site = fixture.rule("site");
    let until_used = async move |used| {
        let site = site.limiter().unwrap();
        let wait = async { while site.status("x").await.unwrap().used() != used {} };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.unwrap_or_else(|_| panic!("never {used} used"));
    };
    (fixture, faulty, until_used)
}

#[tokio::test]
async fn a_denial_waits_for_its_refunds() {
    let (fixture, faulty, until_used) = faulty();
    fixture
        .check("user=ann +3 & site=x => OK | OK user 3/MINUTE 0 60s | OK whole site 5/SECOND 4 1s")
        .await;
    faulty.rule(|verb, _| {
        if verb == "settle" {
            Does::Hold
        } else {
            Does::Answer
        }
    });
    let over = "site=x & user=ann => OVER | OK whole site 5/SECOND 4 1s | OVER user 3/MINUTE 0 60s";
    let mut decision = Box::pin(fixture.check(over));
    while faulty.calls_to("settle") == 0 {
        assert!(decision.as_mut().now_or_never().is_none());
    }
    until_used(2).await;
    faulty.set(Does::Answer);
    decision.await;
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
        let asked = decided("site=x & site=y");
        let mut decision = Box::pin(fixture.service.decide(&asked, None));
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
    let asked = decided("window=a & window=b & coarse=a & coarse=b & huge=a");
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
            over(CONFIG, store, Headers::None).with_caller_timeout(flag.map(Duration::from_millis));
        let mut message = tonic::Request::new(asked.clone());
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
        match (
            fixture.service.decide(&decided(asked), None).await,
            expected,
        ) {
            (Ok(answer), Some(expected)) => {
                assert_eq!(text(&serde_json::to_value(answer).unwrap()), expected);
            }
            (Err(Failure::Store(error)), None) => assert_eq!(error.kind(), ErrorKind::Unavailable),
            (answer, _) => panic!("{asked}: {answer:?}"),
        }
    }
    until_used(0).await;
}
