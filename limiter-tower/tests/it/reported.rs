//! What a client reads from the fields of a server.

use std::time::Duration;

use exact_limiter::MemoryStore;
use http::{HeaderMap, HeaderName, HeaderValue};
use limiter_core::{AllOf, Limit, Limiter, Policy, Window};
use limiter_tower::{RateLimitHeaders, ReportedLimits};
use proptest::prelude::*;

/// Fields, and the seconds that they ask to wait.
const WAITS: &str = r#"
    server: x => none
    retry-after: 0 => 0
    retry-after: 2.5 => 2.5
    retry-after: 3, 30 => 30
    retry-after: 3; retry-after: 30 => 30
    retry-after: soon; retry-after: 7 => 7
    retry-after: 18446744073709551616 => 9007199254.740992
    retry-after: soon => none
    retry-after: -5 => none
    retry-after: inf => none
    retry-after: Sun, 06 Nov 1994 08:50:07 GMT; date: Sun, 06 Nov 1994 08:49:37 GMT => 30
    retry-after: Sun, 06 Nov 1994 08:49:37 GMT => 0
    retry-after: Fri, 31 Dec 9999 23:59:59 GMT; date: Sun, 06 Nov 1994 08:49:37 GMT => 9007199254.740992
    ratelimit: "a";r=0;t=9, "b,c";r=0;t=3, "d";r=2;t=99 => 9
    ratelimit: "a";r=0;t=3; ratelimit: "b";r=0;t=9 => 9
    ratelimit: "a";pk=:cHsdsRa894==:;r=0;t=999999999999999 => 9007199254.740992
    ratelimit: "a";r=0;t=9; retry-after: 12 => 12
    ratelimit: "a";r=0;t=9; retry-after: soon => 9
    ratelimit: "a";r=1;t=9 => none
    ratelimit: "a";r=0 => none
    ratelimit: "a";t=9 => none
    ratelimit: "a";r=0;t=-9 => none
    ratelimit: a;r=0;t=9 => none
    ratelimit: ("a");r=0;t=9 => none
    ratelimit: "a";r=0;t=9; ratelimit: "b => none
    ratelimit: limit=9, remaining=0, reset=9 => none
"#;

#[test]
fn a_response_asks_for_a_wait() {
    for row in WAITS.trim().lines() {
        let (fields, expected) = row.trim().split_once(" => ").unwrap();
        let mut headers = HeaderMap::new();
        for field in fields.split("; ") {
            let (name, value) = field.split_once(": ").unwrap();
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let wait = ReportedLimits::read(&headers).wait();
        let found = wait.map_or("none".to_owned(), |wait| wait.as_secs_f64().to_string());
        assert_eq!(found, expected, "{fields}");
    }
}

fn value() -> impl Strategy<Value = HeaderValue> {
    let piece =
        r#"\PC|[0-9]{1,20}|"a"|;r=0|;t=|;q=|;w=|, |GMT|Sun, 06 Nov 1994 08:49:37 GMT|1e999"#;
    let text = prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat().into_bytes());
    let list = r#"("a";r=[0-9];t=[0-9]{1,15}, ){0,2}"b";r=0;t=[0-9]{1,15}"#;
    let list = list.prop_map(String::into_bytes);
    let bytes = prop_oneof![text, list, prop::collection::vec(any::<u8>(), 0..40)];
    bytes.prop_filter_map("no field", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

proptest! {
    #[test]
    fn a_client_reads_what_the_layer_writes(
        limits in prop::collection::vec((1..=9_u64, 1..=Window::MAX.as_micros()), 1..=4),
        name in "[ -~]{0,9}",
        calls in 1..12,
    ) {
        let limits = limits.into_iter().map(|(max, window)| Limit::new(max, Duration::from_micros(window)));
        let Ok(policy) = limits.collect::<Result<Vec<_>, _>>().and_then(Policy::new) else { return Ok(()) };
        let limiter = Limiter::new(&name, policy, MemoryStore::new());
        for _ in 0..calls {
            let all = AllOf::new().with(limiter.acquire("k")).now().unwrap();
            let mut headers = HeaderMap::new();
            RateLimitHeaders::default().write(&mut headers, &all);
            let reported = ReportedLimits::read(&headers);
            let status = all.parts()[0].status().unwrap();
            let secs = |wait: Duration| Duration::from_secs(limiter_core::ceil_secs(wait));
            prop_assert_eq!(reported.retry_after, all.retry_after().map(secs));
            prop_assert_eq!(reported.limits.len(), status.limits().len());
            for (found, expected) in reported.limits.iter().zip(status.limits().iter()) {
                prop_assert!(found.name.starts_with(&name));
                prop_assert_eq!(found.remaining, expected.remaining());
                prop_assert_eq!(found.refill_after, Some(secs(expected.refill_after())));
                prop_assert_eq!(found.max, Some(expected.limit().max()));
                prop_assert_eq!(found.window, Some(secs(expected.limit().window().as_duration())));
            }
        }
    }

    #[test]
    fn no_field_panics_and_each_wait_is_bounded(fields in prop::collection::vec((0..4_usize, value()), 0..6)) {
        let names = ["retry-after", "ratelimit", "ratelimit-policy", "date"];
        let fields = fields.into_iter().map(|(name, value)| (HeaderName::from_static(names[name]), value));
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        let reported = ReportedLimits::read(&headers);
        let waits = reported.limits.iter().flat_map(|limit| [limit.refill_after, limit.window]);
        for wait in waits.chain([reported.wait(), reported.retry_after]).flatten() {
            prop_assert!(wait <= Window::MAX.as_duration(), "{:?}", reported);
        }
    }
}
