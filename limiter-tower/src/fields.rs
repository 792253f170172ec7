//! Header fields that report limits to clients.

mod list;
mod policies;

use std::cmp::Reverse;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use limiter_core::{LimitStatus, PerLimit, Status, Timestamp, ceil_secs};

use self::list::List;
pub(crate) use self::policies::{Policies, violated};
use self::policies::{applying, remaining_heads};
use crate::decide::{Answer, Ruling};
use crate::rule::Rule;

/// Which header fields report limits to clients. Default: [`FieldForm::Structured`], not on redirects.
///
/// Shadow rules and rules that do not apply to a request have no part in them.
///
/// # Fields that the handler set
/// `RateLimit` and `RateLimit-Policy` are lists: the layer's items are added as one more line. Every other field, `Retry-After`
/// included, stays as the handler or an inner layer set it.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    form: Option<FieldForm>,
    x_rate_limit: Option<Reset>,
    on_redirects: bool,
    max_remaining: u64,
}

/// A form of the fields of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldForm {
    /// Drafts since -08: `RateLimit-Policy: "search";q=5;w=10` and `RateLimit: "search";r=4;t=10`, one item per limit in the order
    /// of the rules and of their policies.
    ///
    /// - The name is the policy's, or else the limiter's. Under several limits the window is appended: `"search-10s"`.
    ///   A name that is not printable ASCII is percent-encoded.
    /// - `w` is rounded up to whole seconds. So is `t`, which is missing where nothing is used.
    /// - Numbers of more than 15 digits become 999,999,999,999,999.
    Structured,
    /// Drafts -03 to -06: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, of the limit with the least remaining or
    /// the longest wait. Reset is in seconds from now, until nothing is used any more.
    Separate,
}

/// What `X-RateLimit-Reset` means. Both are the time at which nothing is used any more, so a client that waits for it is let in
/// whatever its request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Seconds from now.
    SecondsFromNow,
    /// Seconds since 1970, as GitHub sends it.
    UnixTime,
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const SEPARATE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_RATE_LIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

impl Default for Fields {
    fn default() -> Self {
        Self { form: Some(FieldForm::Structured), ..Self::none() }
    }
}

impl Fields {
    /// Returns no fields but `Retry-After`.
    #[must_use]
    pub const fn none() -> Self {
        Self { form: None, x_rate_limit: None, on_redirects: false, max_remaining: u64::MAX }
    }

    /// Sets the form of the draft's fields.
    #[must_use]
    pub const fn form(mut self, form: FieldForm) -> Self {
        self.form = Some(form);
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit with the least remaining or the
    /// longest wait. Services differ in what Reset means, so it has no default.
    #[must_use]
    pub const fn x_rate_limit(mut self, reset: Reset) -> Self {
        self.x_rate_limit = Some(reset);
        self
    }

    /// Sends the fields on 3xx responses too. Default: no, because a client that reads a small remainder may not follow the
    /// redirect.
    #[must_use]
    pub const fn on_redirects(mut self) -> Self {
        self.on_redirects = true;
        self
    }

    /// Caps the remainder that clients see. Default: no cap. A large remainder of a large window may invite a burst.
    #[must_use]
    pub const fn max_remaining(mut self, units: u64) -> Self {
        self.max_remaining = units;
        self
    }

    /// Makes the fields of a response.
    pub(crate) fn values(&self, policies: &Policies, rules: &[Rule], rulings: &[Ruling]) -> Values {
        let mut values = Values { on_redirects: self.on_redirects, ..Values::default() };
        if self.form == Some(FieldForm::Structured) {
            let mut remaining = List::default();
            for ((rule, ruling), heads) in applying(rules, rulings).zip(&policies.heads) {
                let Some(status) = ruling.status() else { continue };
                match &ruling.charge.policy {
                    None => self.remaining_items(&mut remaining, heads, status),
                    Some(policy) => {
                        self.remaining_items(&mut remaining, &remaining_heads(rule.base_name(ruling), policy), status);
                    }
                }
            }
            if !remaining.is_empty() {
                values.policy = policies.value(rules, rulings);
                values.rate_limit = remaining.value();
            }
        }
        self.add_numbers(&mut values, rules, rulings);
        values
    }

    /// Makes the fields of the older forms.
    fn add_numbers(&self, values: &mut Values, rules: &[Rule], rulings: &[Ruling]) {
        if self.form != Some(FieldForm::Separate) && self.x_rate_limit.is_none() {
            return;
        }
        let separate = (self.form == Some(FieldForm::Separate)).then_some((SEPARATE, Reset::SecondsFromNow));
        let x = self.x_rate_limit.map(|reset| (X_RATE_LIMIT, reset));
        let Some((limit, at)) = binding(rules, rulings) else { return };
        for (names, reset) in separate.into_iter().chain(x) {
            let numbers = [limit.limit().max(), limit.remaining().min(self.max_remaining), reset.value(&limit, at)];
            values.numbers.extend(names.into_iter().zip(numbers.map(HeaderValue::from)));
        }
    }

    fn remaining_items(&self, out: &mut List, heads: &[String], status: &Status) {
        // A status answers for its only limit without making a list of all.
        if let [head] = heads {
            self.remaining_item(out, head, status.remaining(), status.used(), status.refill_after());
            return;
        }
        for (head, limit) in heads.iter().zip(&status.limits()) {
            self.remaining_item(out, head, limit.remaining(), limit.used(), limit.refill_after());
        }
    }

    fn remaining_item(&self, out: &mut List, head: &str, remaining: u64, used: u64, refill_after: Duration) {
        out.item(head);
        out.number(remaining.min(self.max_remaining));
        if used > 0 {
            out.push(b";t=");
            out.number(ceil_secs(refill_after));
        }
    }
}

impl Reset {
    fn value(self, limit: &LimitStatus, at: Timestamp) -> u64 {
        match self {
            Self::SecondsFromNow => ceil_secs(limit.reset_after()),
            Self::UnixTime => at.saturating_add(limit.reset_after()).as_micros().div_ceil(1_000_000),
        }
    }
}

/// Returns the limit that matters most to the client, that with the longest wait or else the least remaining, and the time
/// that it describes.
fn binding(rules: &[Rule], rulings: &[Ruling]) -> Option<(LimitStatus, Timestamp)> {
    let limits = |(_, ruling): (_, &Ruling)| match &ruling.answer {
        Answer::Denied(decision) => Some((decision.limits(), decision.at())),
        _ => ruling.status().map(|status| (status.limits(), status.at())),
    };
    let order = |limit: &LimitStatus| (Reverse(limit.retry_after()), limit.remaining());
    let least =
        |(limits, at): (PerLimit<LimitStatus>, _)| limits.iter().copied().min_by_key(order).map(|limit| (limit, at));
    applying(rules, rulings).filter_map(limits).filter_map(least).min_by_key(|(limit, _)| order(limit))
}

/// The fields of one response.
#[derive(Debug, Default)]
pub(crate) struct Values {
    policy: Option<HeaderValue>,
    rate_limit: Option<HeaderValue>,
    /// The fields of the older forms.
    numbers: Vec<(HeaderName, HeaderValue)>,
    on_redirects: bool,
}

impl Values {
    /// Adds the fields to a response.
    pub(crate) fn add(self, status: StatusCode, headers: &mut HeaderMap) {
        if status.is_redirection() && !self.on_redirects {
            return;
        }
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
pub(crate) fn add_retry_after(seconds: Option<u64>, headers: &mut HeaderMap) {
    if let Some(seconds) = seconds {
        headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(seconds));
    }
}
