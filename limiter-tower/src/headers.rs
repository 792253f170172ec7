//! Header fields that report limits to clients.

mod list;
mod names;
#[cfg(feature = "client")]
mod reported;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use limiter_core::request::PartDecision;
use limiter_core::{
    JointDecision, LimitStatus, SharedStore, Status, Timestamp, WindowStore, ceil_secs,
};

use self::list::List;
pub use self::names::FieldNames;
pub(crate) use self::names::Policies;
#[cfg(feature = "client")]
pub use self::reported::{ReportedLimit, ReportedLimits};
use crate::rule::Rule;
use crate::rulings::Decided;

/// Which header fields report limits to clients. Default: [`HeaderFormat::Structured`], not on redirects.
///
/// They exclude shadow rules and rules that do not apply to the request.
///
/// # Fields that the handler set
/// `RateLimit` and `RateLimit-Policy` are lists: the layer's items are added as one more line. Every other field, `Retry-After`
/// included, stays as the handler or an inner layer set it.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitHeaders {
    form: Option<HeaderFormat>,
    x_rate_limit: Option<ResetFormat>,
    on_redirects: bool,
    max_remaining: u64,
}

/// A form of the fields of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderFormat {
    /// Drafts since -08: `RateLimit-Policy: "search";q=5;w=10` and `RateLimit: "search";r=4;t=10`, one item per limit in the order
    /// of the rules and of their policies.
    ///
    /// - The name consists of the limiter's name, the policy's if it has one, and the window if there are several limits:
    ///   `"search-gold-10s"`. Everything but printable ASCII is percent-encoded.
    /// - `w` is rounded up to whole seconds. So is `t`, which is absent if nothing is used.
    /// - Numbers of more than 15 digits become 999,999,999,999,999.
    Structured,
    /// Drafts -03 to -06: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, of the limit with the least remaining
    /// or the longest wait. Reset is the number of seconds until nothing is used.
    Separate,
}

/// The meaning of `X-RateLimit-Reset`. Both forms give the time at which nothing counts any more. A client that waits until
/// then is admitted at any cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetFormat {
    /// Seconds from now.
    SecondsFromNow,
    /// Seconds since 1970, as GitHub sends it.
    UnixTime,
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static SEPARATE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATE_LIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

impl Default for RateLimitHeaders {
    fn default() -> Self {
        Self {
            form: Some(HeaderFormat::Structured),
            ..Self::none()
        }
    }
}

impl RateLimitHeaders {
    /// Returns no fields but `Retry-After`.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            form: None,
            x_rate_limit: None,
            on_redirects: false,
            max_remaining: u64::MAX,
        }
    }

    /// Sets the form of the draft's fields.
    #[must_use]
    pub const fn format(mut self, form: HeaderFormat) -> Self {
        self.form = Some(form);
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit with the least remaining or the
    /// longest wait. Services disagree on the meaning of Reset, so it has no default.
    #[must_use]
    pub const fn x_rate_limit(mut self, reset: ResetFormat) -> Self {
        self.x_rate_limit = Some(reset);
        self
    }

    /// Also sends the fields on 3xx responses. Default: no, because a client that reads a small remainder may not follow the
    /// redirect.
    #[must_use]
    pub const fn on_redirects(mut self) -> Self {
        self.on_redirects = true;
        self
    }

    /// Caps the remainder that clients see. Default: no cap. A large remainder in a large window may invite a burst.
    #[must_use]
    pub const fn max_remaining(mut self, units: u64) -> Self {
        self.max_remaining = units;
        self
    }

    /// Writes a decision's fields, and `Retry-After` if it is a denial, for handlers that send the layer's responses.
    ///
    /// ```
    /// # use exact_limiter::{AllOf, Limiter, MemoryStore, policy};
    /// use limiter_tower::RateLimitHeaders;
    ///
    /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
    /// let decision = AllOf::new().with(search.acquire("customer 7")).now()?;
    /// let mut headers = http::HeaderMap::new();
    /// RateLimitHeaders::default().write(&mut headers, &decision);
    /// assert_eq!(headers["ratelimit"], "\"search\";r=4;t=10");
    /// # Ok::<(), exact_limiter::Error>(())
    /// ```
    pub fn write<S: WindowStore>(&self, headers: &mut HeaderMap, all: &JointDecision<'_, S>) {
        self.of_calls(&FieldNames::of_calls(all)).append(headers);
        add_retry_after(all.retry_after(), headers);
    }

    /// Visits the fields of several calls in their order, each with the names of its limiter's own policy and the usage to report,
    /// and `Retry-After` if a wait is given: for servers that decide like the layer, with an [`AllOf`](limiter_core::AllOf). Each field is a name and a value.
    pub fn visit_all<'a, 'l: 'a>(
        &self,
        calls: impl Iterator<
            Item = (
                &'a FieldNames,
                &'a PartDecision<'l, SharedStore>,
                &'a Status,
            ),
        > + Clone,
        retry_after: Option<Duration>,
        mut visit: impl FnMut(&'static str, &str),
    ) {
        let seen = calls.map(|(names, part, status)| Seen {
            names: names.for_call(part),
            status,
        });
        if self.form == Some(HeaderFormat::Structured) {
            for (name, list) in [
                ("ratelimit-policy", quotas(&seen)),
                ("ratelimit", self.remaining(&seen)),
            ] {
                if let Some(list) = list.text() {
                    visit(name, list);
                }
            }
        }
        self.numbers(&seen, |name, number| {
            visit(name.as_str(), itoa::Buffer::new().format(number));
        });
        if let Some(wait) = retry_after {
            let seconds = retry_after_secs(wait);
            visit("retry-after", itoa::Buffer::new().format(seconds));
        }
    }

    pub(crate) fn of_calls<S>(&self, calls: &[(FieldNames, &PartDecision<'_, S>)]) -> Values {
        let seen = calls
            .iter()
            .filter_map(|(names, part)| Seen::of(names, part));
        self.make(&seen, None)
    }

    /// Makes the fields of a response.
    pub(crate) fn values(
        &self,
        policies: &Policies,
        rules: &[Rule],
        rulings: &Decided<'_>,
    ) -> Values {
        let enforced = rules
            .iter()
            .zip(&policies.names)
            .zip(rulings.iter())
            .filter(|((rule, _), _)| !rule.shadow);
        let seen = enforced
            .clone()
            .filter_map(|((_, names), (_, part))| Seen::of(names, part?));
        let as_made = |(_, (_, part)): (_, (_, Option<&PartDecision<'_, _>>))| {
            part.is_some_and(|part| part.own_policy().is_none() && part.status().is_some())
        };
        let policy = if enforced.clone().all(as_made) {
            policies.value.clone()
        } else {
            None
        };
        self.make(&seen, policy)
    }

    /// Builds the header fields for these usages. `policy` is `RateLimit-Policy` if it is made already.
    fn make<'a>(
        &self,
        seen: &(impl Iterator<Item = Seen<'a>> + Clone),
        policy: Option<HeaderValue>,
    ) -> Values {
        let mut values = Values {
            on_redirects: self.on_redirects,
            ..Values::default()
        };
        if self.form == Some(HeaderFormat::Structured) {
            values.rate_limit = self.remaining(seen).value();
            values.policy = policy.or_else(|| quotas(seen).value());
        }
        self.numbers(seen, |name, number| {
            values.numbers.push((name, HeaderValue::from(number)));
        });
        values
    }

    /// Visits the fields of the older forms.
    fn numbers<'a>(
        &self,
        seen: &(impl Iterator<Item = Seen<'a>> + Clone),
        mut visit: impl FnMut(&'static HeaderName, u64),
    ) {
        let separate =
            (self.form == Some(HeaderFormat::Separate)).then_some(ResetFormat::SecondsFromNow);
        for (names, reset) in [(&SEPARATE, separate), (&X_RATE_LIMIT, self.x_rate_limit)] {
            let Some(reset) = reset else { continue };
            let Some((limit, at)) = binding(seen.clone()) else {
                break;
            };
            let numbers = [
                limit.limit().max(),
                limit.remaining().min(self.max_remaining),
                reset.value(&limit, at),
            ];
            names
                .iter()
                .zip(numbers)
                .for_each(|(name, number)| visit(name, number));
        }
    }

    fn remaining<'a>(&self, seen: &(impl Iterator<Item = Seen<'a>> + Clone)) -> List {
        let mut list = List::default();
        for Seen { names, status } in seen.clone() {
            // A status reports its only limit without making a list of all.
            if let [head] = &names.heads[..] {
                self.remaining_item(
                    &mut list,
                    head,
                    status.remaining(),
                    status.used(),
                    status.refill_after(),
                );
                continue;
            }
            for (head, limit) in names.heads.iter().zip(status.limits().iter()) {
                self.remaining_item(
                    &mut list,
                    head,
                    limit.remaining(),
                    limit.used(),
                    limit.refill_after(),
                );
            }
        }
        list
    }

    fn remaining_item(
        &self,
        out: &mut List,
        head: &str,
        remaining: u64,
        used: u64,
        refill_after: Duration,
    ) {
        out.item(head);
        out.number(remaining.min(self.max_remaining));
        if used > 0 {
            out.push(b";t=");
            out.number(ceil_secs(refill_after));
        }
    }
}

impl ResetFormat {
    fn value(self, limit: &LimitStatus, at: Timestamp) -> u64 {
        match self {
            Self::SecondsFromNow => ceil_secs(limit.reset_after()),
            Self::UnixTime => at
                .saturating_add(limit.reset_after())
                .as_micros()
                .div_ceil(1_000_000),
        }
    }
}

/// Returns `RateLimit-Policy`.
fn quotas<'a>(seen: &(impl Iterator<Item = Seen<'a>> + Clone)) -> List {
    let mut list = List::default();
    seen.clone()
        .for_each(|seen| seen.names.quotas.iter().for_each(|quota| list.item(quota)));
    list
}

/// What clients see of a call.
#[derive(Clone)]
struct Seen<'a> {
    names: Cow<'a, FieldNames>,
    status: &'a Status,
}

impl<'a> Seen<'a> {
    /// `names` are the names for the limiter's own policy.
    fn of<S>(names: &'a FieldNames, part: &'a PartDecision<'_, S>) -> Option<Self> {
        Some(Self {
            names: names.for_call(part),
            status: part.status()?,
        })
    }
}

/// Returns the limit that matters most to the client, that with the longest wait or else the least remaining, and the time
/// that it describes.
fn binding<'a>(seen: impl Iterator<Item = Seen<'a>>) -> Option<(LimitStatus, Timestamp)> {
    let order = |limit: &LimitStatus| (Reverse(limit.retry_after()), limit.remaining());
    let least = |seen: Seen<'_>| {
        Some((
            seen.status.limits().iter().copied().min_by_key(order)?,
            seen.status.at(),
        ))
    };
    seen.filter_map(least).min_by_key(|(limit, _)| order(limit))
}

/// The fields of one response.
#[derive(Debug, Default)]
pub(crate) struct Values {
    policy: Option<HeaderValue>,
    rate_limit: Option<HeaderValue>,
    /// The fields of the older forms.
    numbers: Vec<(&'static HeaderName, HeaderValue)>,
    on_redirects: bool,
}

impl Values {
    /// Adds the fields to a response.
    pub(crate) fn add(self, status: StatusCode, headers: &mut HeaderMap) {
        if !status.is_redirection() || self.on_redirects {
            self.append(headers);
        }
    }

    fn append(self, headers: &mut HeaderMap) {
        if let (Some(policy), Some(rate_limit)) = (self.policy, self.rate_limit) {
            headers.append(POLICY, policy);
            headers.append(RATE_LIMIT, rate_limit);
        }
        for (name, value) in self.numbers {
            headers.entry(name).or_insert(value);
        }
    }
}

/// Adds `Retry-After` unless it is there.
pub(crate) fn add_retry_after(wait: Option<Duration>, headers: &mut HeaderMap) {
    if let Some(seconds) = wait.map(retry_after_secs) {
        headers
            .entry(RETRY_AFTER)
            .or_insert_with(|| HeaderValue::from(seconds));
    }
}

/// Returns the value of `Retry-After` for a wait.
pub(crate) fn retry_after_secs(wait: Duration) -> u64 {
    ceil_secs(wait).max(1)
}
