//! The fields of a server's response, as its client reads them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use http::header::{DATE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use limiter_core::Window;

use super::{POLICY, RATE_LIMIT};

/// The limits and the wait that a server's response reports to its client, as the [layer](crate::LimitLayer) sends them.
///
/// A field that cannot be read counts as absent. No wait is longer than [`Window::MAX`].
///
/// ```
/// # use std::time::Duration;
/// use limiter_tower::ReportedLimits;
///
/// let response = http::Response::builder().header("ratelimit", "\"minute\";r=0;t=9, \"day\";r=70;t=300").body(()).unwrap();
/// let reported = ReportedLimits::read(response.headers());
/// assert_eq!((reported.limits[1].name.as_str(), reported.limits[1].remaining), ("day", 70));
/// assert_eq!(reported.wait(), Some(Duration::from_secs(9)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportedLimits {
    /// `Retry-After`: of several, the longest. A date counts from the field `Date`, or without it from the system's clock. Fractions of
    /// a second, which some servers send, count.
    pub retry_after: Option<Duration>,
    /// The items of `RateLimit`, in their order.
    pub limits: Vec<ReportedLimit>,
}

/// An item of `RateLimit`, with the item of `RateLimit-Policy` that has the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportedLimit {
    /// The name.
    pub name: String,
    /// The remaining units, `r`.
    pub remaining: u64,
    /// When `remaining` grows, `t`, in whole seconds.
    pub refill_after: Option<Duration>,
    /// The most units in the window, `q`.
    pub max: Option<u64>,
    /// The window, `w`, in whole seconds.
    pub window: Option<Duration>,
}

impl ReportedLimits {
    /// Reads the fields of a response.
    #[must_use]
    pub fn read(headers: &HeaderMap) -> Self {
        let texts = |name| headers.get_all(name).iter().filter_map(text);
        let now = texts(DATE).find_map(date);
        let retry_after = texts(RETRY_AFTER).filter_map(|text| wait(text, now));
        // The first of a name counts.
        let policies: HashMap<_, _> = items(headers, &POLICY).into_iter().rev().collect();
        let limits = items(headers, &RATE_LIMIT).into_iter();
        let limits = limits.filter_map(|(name, limit)| {
            let policy = policies.get(&name);
            let of_policy = |key| number(policy?, key);
            Some(ReportedLimit {
                remaining: number(&limit, "r")?,
                refill_after: number(&limit, "t").map(seconds),
                max: of_policy("q"),
                window: of_policy("w").map(seconds),
                name,
            })
        });
        Self {
            retry_after: retry_after.max(),
            limits: limits.collect(),
        }
    }

    /// Returns how long to wait before the next request: [`retry_after`](Self::retry_after), or without it until each limit that has
    /// nothing remaining is refilled. `None` if there is nothing to wait for, or nothing that says how long.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let exhausted = self.limits.iter().filter(|limit| limit.remaining == 0);
        self.retry_after
            .or_else(|| exhausted.filter_map(|limit| limit.refill_after).max())
    }
}

fn number(parameters: &sfv::Parameters, key: &str) -> Option<u64> {
    let number = parameters.get(key)?.as_integer()?;
    i64::from(number).try_into().ok()
}

/// Returns the names and the parameters of a list's items. Several lines are one list.
fn items(headers: &HeaderMap, name: &HeaderName) -> Vec<(String, sfv::Parameters)> {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let list: sfv::List = sfv::Parser::new(&lines.join(&b','))
        .parse()
        .unwrap_or_default();
    let item = |entry| match entry {
        sfv::ListEntry::Item(item) => {
            Some((item.bare_item.as_string()?.as_str().to_owned(), item.params))
        }
        sfv::ListEntry::InnerList(_) => None,
    };
    list.into_iter().filter_map(item).collect()
}

fn text(field: &HeaderValue) -> Option<&str> {
    field.to_str().ok()
}

fn date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text).ok()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(Window::MAX.as_duration())
}

/// Reads one `Retry-After`: a date, or seconds. Some proxies join several with commas.
fn wait(text: &str, now: Option<SystemTime>) -> Option<Duration> {
    let longest = Window::MAX.as_duration();
    if let Some(until) = date(text) {
        let now = now.unwrap_or_else(SystemTime::now);
        return Some(until.duration_since(now).unwrap_or_default().min(longest));
    }
    let numbers = text.split(',').map(str::trim);
    // `f64` also reads signs, `inf` and `nan`.
    let numbers = numbers.filter(|text| text.starts_with(|first: char| first.is_ascii_digit()));
    let waits = numbers.filter_map(|text| text.parse::<f64>().ok());
    waits
        .map(|wait| Duration::try_from_secs_f64(wait).map_or(longest, |wait| wait.min(longest)))
        .max()
}
