//! Header fields that tell clients about their limits.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use limiter_core::{Limit, LimitStatus, PerLimit, Policy, Status, Timestamp, Window, whole_secs};
use smallvec::SmallVec;

use crate::decide::{Answer, Ruling};
use crate::rule::Rule;

/// Which header fields tell clients about their limits. Default: [`FieldForm::Structured`], not on redirects.
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

    /// Never tells a client that more than this remains. Default: no bound. A large remainder of a large window may invite a
    /// burst.
    #[must_use]
    pub const fn max_remaining(mut self, units: u64) -> Self {
        self.max_remaining = units;
        self
    }

    /// Makes the fields of a response.
    pub(crate) fn values(&self, policies: &Policies, rules: &[Rule], rulings: &[Ruling]) -> Values {
        let mut values = Values { list: SmallVec::new(), on_redirects: self.on_redirects };
        if self.form == Some(FieldForm::Structured) {
            let mut remaining = List::new();
            for (base, status) in
                applying(rules, rulings).filter_map(|(rule, ruling)| Some((rule.base_name(ruling), ruling.status()?)))
            {
                self.remaining_items(&mut remaining, base, status);
            }
            if !remaining.is_empty() {
                values.push(POLICY, policies.value(rules, rulings));
                values.push(RATE_LIMIT, remaining.value());
            }
        }
        let separate = (self.form == Some(FieldForm::Separate)).then_some((SEPARATE, Reset::SecondsFromNow));
        let x = self.x_rate_limit.map(|reset| (X_RATE_LIMIT, reset));
        for (names, reset) in separate.into_iter().chain(x) {
            let Some((limit, at)) = binding(rules, rulings) else { continue };
            let numbers = [limit.limit().max(), limit.remaining().min(self.max_remaining), reset.value(&limit, at)];
            for (name, number) in names.into_iter().zip(numbers) {
                values.push(name, Some(HeaderValue::from(number)));
            }
        }
        values
    }

    fn remaining_items(&self, out: &mut List, base: &str, status: &Status) {
        let limits = status.limits();
        for (i, limit) in limits.iter().enumerate() {
            out.item(LimitName { base, window: window_name(limits.iter().map(LimitStatus::limit), i) });
            out.parameter(";r=", limit.remaining().min(self.max_remaining));
            if limit.used() > 0 {
                out.parameter(";t=", whole_secs(limit.refill_after()));
            }
        }
    }
}

impl Reset {
    fn value(self, limit: &LimitStatus, at: Timestamp) -> u64 {
        match self {
            Self::SecondsFromNow => whole_secs(limit.reset_after()),
            Self::UnixTime => at.saturating_add(limit.reset_after()).as_micros().div_ceil(1_000_000),
        }
    }
}

/// The enforced rules.
fn applying<'a>(rules: &'a [Rule], rulings: &'a [Ruling]) -> impl Iterator<Item = (&'a Rule, &'a Ruling)> {
    rules.iter().zip(rulings).filter(|(rule, _)| !rule.shadow)
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

/// `RateLimit-Policy` if all rules apply under their limiters' own policies, which is made once.
#[derive(Debug)]
pub(crate) struct Policies(Option<HeaderValue>);

impl Policies {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut list = List::new();
        for rule in rules.iter().filter(|rule| !rule.shadow) {
            policy_items(&mut list, rule.limiter_name(), rule.limiter.policy());
        }
        Self(list.value())
    }

    fn value(&self, rules: &[Rule], rulings: &[Ruling]) -> Option<HeaderValue> {
        if applying(rules, rulings).all(|(_, ruling)| ruling.status().is_some() && ruling.charge.policy.is_none()) {
            return self.0.clone();
        }
        let mut list = List::new();
        for (rule, ruling) in applying(rules, rulings).filter(|(_, ruling)| ruling.status().is_some()) {
            policy_items(&mut list, rule.base_name(ruling), rule.policy(ruling));
        }
        list.value()
    }
}

fn policy_items(out: &mut List, base: &str, policy: &Policy) {
    for (i, limit) in policy.limits().iter().enumerate() {
        out.item(LimitName { base, window: window_name(policy.limits().iter().copied(), i) });
        out.parameter(";q=", limit.max());
        out.parameter(";w=", whole_secs(limit.window().as_duration()));
    }
}

impl Rule {
    fn limiter_name(&self) -> &str {
        self.limiter.policy().name().unwrap_or(self.limiter.name().as_str())
    }

    fn base_name<'a>(&'a self, ruling: &'a Ruling) -> &'a str {
        ruling.charge.policy.as_ref().and_then(|policy| policy.name()).unwrap_or(self.limiter_name())
    }

    fn policy<'a>(&'a self, ruling: &'a Ruling) -> &'a Policy {
        ruling.charge.policy.as_deref().unwrap_or(self.limiter.policy())
    }
}

/// Returns the names of the limits that deny, as clients see them.
pub(crate) fn violated(rules: &[Rule], rulings: &[Ruling]) -> Vec<String> {
    let mut names = Vec::new();
    for (rule, ruling) in applying(rules, rulings) {
        let limits = rule.policy(ruling).limits();
        for (i, limit) in limits.iter().enumerate() {
            let denies = match &ruling.answer {
                Answer::Denied(decision) => decision.limits().get(i).is_some_and(|limit| limit.retry_after().is_some()),
                Answer::CostExceedsLimit => ruling.charge.cost > limit.max(),
                _ => false,
            };
            if denies {
                let window = window_name(limits.iter().copied(), i);
                names.push(LimitName { base: rule.base_name(ruling), window }.to_string());
            }
        }
    }
    names
}

/// The name of a limit: that of the policy or the limiter, and the window if there are several limits.
struct LimitName<'a> {
    base: &'a str,
    window: WindowName,
}

enum WindowName {
    None,
    Window(Window),
    /// Two limits have this window.
    Limit(Limit),
}

fn window_name(limits: impl ExactSizeIterator<Item = Limit> + Clone, i: usize) -> WindowName {
    if limits.len() == 1 {
        return WindowName::None;
    }
    let Some(limit) = limits.clone().nth(i) else { return WindowName::None };
    match limits.filter(|other| other.window() == limit.window()).count() {
        1 => WindowName::Window(limit.window()),
        _ => WindowName::Limit(limit),
    }
}

impl fmt::Display for LimitName<'_> {
    /// Percent-encodes what is not printable ASCII.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.base;
        while let Some(i) = rest.bytes().position(|byte| !matches!(byte, b' '..=b'~')) {
            let (plain, other) = rest.split_at(i);
            let end = other.bytes().position(|byte| matches!(byte, b' '..=b'~')).unwrap_or(other.len());
            f.write_str(plain)?;
            other.bytes().take(end).try_for_each(|byte| write!(f, "%{byte:02X}"))?;
            rest = &other[end..];
        }
        f.write_str(rest)?;
        match self.window {
            WindowName::None => Ok(()),
            WindowName::Window(window) => write!(f, "-{window}"),
            WindowName::Limit(limit) => write!(f, "-{limit}"),
        }
    }
}

/// A list of a structured field, as it is written.
struct List(SmallVec<[u8; 256]>);

/// The largest Integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

impl List {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins an item that is a String.
    fn item(&mut self, text: impl fmt::Display) {
        if !self.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.0.push(b'"');
        // Writing to a list cannot fail.
        let _ = write!(self, "{text}");
        self.0.push(b'"');
    }

    fn parameter(&mut self, key: &str, number: u64) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
    }

    /// Returns the value, in an allocation of its own length; `None` if there is no item.
    fn value(&self) -> Option<HeaderValue> {
        if self.is_empty() { None } else { HeaderValue::from_bytes(&self.0).ok() }
    }
}

impl fmt::Write for List {
    /// Writes within the quotes of a String.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if matches!(byte, b'"' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
        Ok(())
    }
}

/// The fields of one response.
#[derive(Debug)]
pub(crate) struct Values {
    list: SmallVec<[(HeaderName, HeaderValue); 2]>,
    on_redirects: bool,
}

impl Values {
    fn push(&mut self, name: HeaderName, value: Option<HeaderValue>) {
        if let Some(value) = value {
            self.list.push((name, value));
        }
    }

    /// Adds the fields to a response.
    pub(crate) fn add(self, status: StatusCode, headers: &mut HeaderMap) {
        if status.is_redirection() && !self.on_redirects {
            return;
        }
        for (name, value) in self.list {
            if name == POLICY || name == RATE_LIMIT || !headers.contains_key(&name) {
                headers.append(name, value);
            }
        }
    }
}

/// Adds `Retry-After` unless it is there.
pub(crate) fn add_retry_after(seconds: Option<u64>, headers: &mut HeaderMap) {
    if let Some(seconds) = seconds {
        headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(seconds));
    }
}
