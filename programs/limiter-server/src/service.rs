//! The service: decides on requests of every protocol.

mod claim;
mod reply;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use limiter_core::request::PartDecision;
use limiter_core::{Error, ErrorKind, KeyBuf, Receipt, Status};
use limiter_tower::{HeaderFormat, RateLimitHeaders, ResetFormat};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::config::Errors;
use crate::denied::DeniedKeys;
use crate::detailed::Detailed;
use crate::proto::{RateLimitRequest, RateLimitResponse};
use crate::rules::{Counts, Rule, RuleSet};
use crate::store::Store;

use self::claim::{Ask, Claim};
use self::verdict::{Claims, Verdict};

/// The largest number of descriptors in a request.
pub const MAX_DESCRIPTORS: usize = 1_000;

/// The header fields of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Headers {
    /// `ratelimit`, `ratelimit-policy` and `retry-after`.
    #[default]
    Ratelimit,
    /// `ratelimit-limit`, `ratelimit-remaining`, `ratelimit-reset` and `retry-after`.
    Legacy,
    /// `x-ratelimit-limit`, `x-ratelimit-remaining`, `x-ratelimit-reset` and `retry-after`.
    XRatelimit,
    /// None.
    None,
}

/// How to treat descriptors that match no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unmatched {
    /// Allow them.
    #[default]
    Allow,
    /// Deny them.
    Deny,
    /// Refuse the request as invalid.
    Error,
}

/// Why a request has no decision.
#[derive(Debug)]
pub enum Failure {
    /// The request is invalid: the value found, and the expected one.
    Invalid(String),
    /// The store failed.
    Store(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidCost => Self::Invalid(error.to_string()),
            ErrorKind::NeedsExactLimit => Self::Invalid(format!("id: {error}")),
            _ => Self::Store(error),
        }
    }
}

/// The result of one call of [`Service::acquire_all`].
#[derive(Debug)]
pub(crate) struct Acquired {
    /// `None` if no rule matches.
    pub(crate) rule: Option<Arc<Rule>>,
    pub(crate) key: KeyBuf,
    pub(crate) cost: u64,
    /// Whether the units fit, or need not.
    pub(crate) allowed: bool,
    /// Whether they exceed a maximum.
    pub(crate) never_fits: bool,
    pub(crate) receipt: Option<Receipt>,
    /// `None` if nothing counts.
    pub(crate) status: Option<Status>,
}

/// The rules, the store, and the counts so far.
#[derive(Debug)]
pub struct Service {
    rules: ArcSwap<RuleSet>,
    /// The errors of the latest reload.
    errors: ArcSwapOption<Errors>,
    store: Store,
    fields: Option<RateLimitHeaders>,
    unmatched: Unmatched,
    /// Descriptors of unknown domains.
    unknown: AtomicU64,
    denied: DeniedKeys,
    detailed: Detailed,
    caller_timeout: Option<Duration>,
    stop: CancellationToken,
    reloads: Notify,
}

impl Service {
    /// Returns a service of rules over this store.
    #[must_use]
    pub fn new(rules: RuleSet, store: Store, headers: Headers) -> Self {
        let fields = match headers {
            Headers::Ratelimit => Some(RateLimitHeaders::default()),
            Headers::Legacy => Some(RateLimitHeaders::none().format(HeaderFormat::Separate)),
            Headers::XRatelimit => {
                Some(RateLimitHeaders::none().x_rate_limit(ResetFormat::SecondsFromNow))
            }
            Headers::None => None,
        };
        Self {
            rules: ArcSwap::from_pointee(rules),
            errors: ArcSwapOption::empty(),
            store,
            fields,
            unmatched: Unmatched::default(),
            unknown: AtomicU64::new(0),
            denied: DeniedKeys::default(),
            detailed: Detailed::default(),
            caller_timeout: None,
            stop: CancellationToken::new(),
            reloads: Notify::new(),
        }
    }

    /// Sets the treatment of descriptors that match no rule. Default: [`Unmatched::Allow`].
    #[must_use]
    pub fn with_unmatched(self, unmatched: Unmatched) -> Self {
        Self { unmatched, ..self }
    }

    /// Sets the timeout of callers that do not send one. Default: as long as it takes.
    #[must_use]
    pub fn with_caller_timeout(self, caller_timeout: Option<Duration>) -> Self {
        Self {
            caller_timeout,
            ..self
        }
    }

    /// Replaces the rules. Requests in progress use the old ones.
    ///
    /// A configuration with errors leaves the rules unchanged; [`errors`](Self::errors) returns them until the next reload.
    pub fn reload(&self, rules: Result<RuleSet, Errors>) {
        let errors = rules.map(|rules| {
            let rules = Arc::new(rules);
            self.rules.store(Arc::clone(&rules));
            self.detailed.retain(&rules);
            self.reloads.notify_waiters();
        });
        self.errors.store(errors.err().map(Arc::new));
    }

    /// Returns the errors of the configuration, if the latest reload had any.
    pub fn errors(&self) -> Option<Arc<Errors>> {
        self.errors.load_full()
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.rules.load_full()
    }

    /// Returns the warnings about the current rules over this store.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let rules = self.rules();
        match self.store.memory() {
            // Files, and each lease once.
            Some(_) => rules
                .warnings_of_files()
                .chain(rules.leases_in_memory())
                .collect(),
            None => rules.warnings().collect(),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the keys that were denied lately.
    pub fn denied(&self) -> &DeniedKeys {
        &self.denied
    }

    /// Returns the counts of the keys whose rules ask for them.
    pub(crate) fn detailed(&self) -> &Detailed {
        &self.detailed
    }

    /// Returns the number of descriptors of unknown domains.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Relaxed)
    }

    /// Renders something about all rules, away from the threads that decide. One rendering at a time: it may take megabytes.
    pub(crate) async fn render(
        self: Arc<Self>,
        render: impl FnOnce(&Self) -> String + Send + 'static,
    ) -> Result<String, JoinError> {
        static ONE: Semaphore = Semaphore::const_new(1);
        let _one = ONE.acquire().await;
        spawn_blocking(move || render(&self)).await
    }

    /// Counts a descriptor that no rule matches. Returns `true` if it is allowed.
    ///
    /// # Errors
    /// With [`Unmatched::Error`].
    pub(crate) fn allows_unmatched(
        &self,
        rules: &RuleSet,
        domain: &str,
    ) -> Result<bool, &'static str> {
        // An unknown domain must not make a series.
        let known = rules.overrides(domain).map(|rule| &rule.counts.unmatched);
        known.unwrap_or(&self.unknown).fetch_add(1, Relaxed);
        match self.unmatched {
            Unmatched::Allow => Ok(true),
            Unmatched::Deny => Ok(false),
            Unmatched::Error => Err("no rule matches this descriptor"),
        }
    }

    /// Decides on all descriptors of a request together. If one is over its limit, none is charged, except by charges that count in
    /// any case.
    ///
    /// `timeout` is how long the caller waits. If the store has not responded after three quarters of it, the outage choice
    /// decides. Default: [the service's](Self::with_caller_timeout).
    ///
    /// # Errors
    /// [`Failure::Invalid`] without a domain or descriptors, or with too many. [`Failure::Store`] if a rule's store failed.
    ///
    /// # Cancel safety
    /// Dropping the future may leave charges: limits then admit less until these expire, never more.
    pub async fn decide(
        &self,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, Failure> {
        check(&request.domain, request.descriptors.len(), "descriptors")?;
        let rules = self.rules.load();
        let all = request.descriptors.iter().enumerate();
        let claims = all.map(|(i, descriptor)| {
            let claim = Claim::new(&rules, request, descriptor);
            claim.map_err(|text| format!("descriptors[{i}].{text}"))
        });
        let claims = self.claims(&rules, &request.domain, "descriptors", claims)?;
        let verdict = self.decide_on(claims, false, timeout).await?;
        Ok(reply::new(&verdict, self.fields.as_ref()))
    }

    /// Acquires units by several rules, of all or of none. A cost of 0 only looks. With an id, a repetition counts once.
    ///
    /// # Errors
    /// As those of [`decide`](Self::decide), and [`Failure::Invalid`] if a rule without an exact limit has an id.
    ///
    /// # Cancel safety
    /// That of [`decide`](Self::decide).
    pub(crate) async fn acquire_all(
        &self,
        domain: &str,
        calls: &[(Vec<(&str, &str)>, u64)],
        id: Option<u128>,
    ) -> Result<(bool, Vec<Acquired>), Failure> {
        check(domain, calls.len(), "calls")?;
        let rules = self.rules.load();
        // Calls on one log are one entry, so they share the id.
        let claims = calls
            .iter()
            .map(|(entries, cost)| Ok(Claim::of(rules.find(domain, entries), *cost, id)));
        let claims = self.claims(&rules, domain, "calls", claims)?;
        let verdict = self.decide_on(claims, true, None).await?;
        Ok((verdict.admitted, reply::acquired(&verdict)))
    }

    /// Decides on claims, and counts them.
    async fn decide_on<'r>(
        &self,
        claims: Claims<'r>,
        refundable: bool,
        timeout: Option<Duration>,
    ) -> Result<Verdict<'r>, Failure> {
        let timeout = timeout.or(self.caller_timeout);
        let timeout = timeout.map(|timeout| timeout - timeout / 4);
        let verdict = Verdict::reach(claims, refundable, timeout).await?;
        self.count_all(&verdict);
        Ok(verdict)
    }

    /// Collects the claims of a request, and decides on those that match no rule.
    fn claims<'r>(
        &self,
        rules: &RuleSet,
        domain: &str,
        what: &str,
        all: impl Iterator<Item = Result<Claim<'r>, String>>,
    ) -> Result<Claims<'r>, Failure> {
        let mut claims = Claims::new();
        for (i, claim) in all.enumerate() {
            let mut claim = claim.map_err(Failure::Invalid)?;
            if claim.rule.is_none() {
                let allowed = self.allows_unmatched(rules, domain);
                if !allowed.map_err(|text| Failure::Invalid(format!("{what}[{i}]: {text}")))? {
                    claim.ask = Ask::Refused;
                }
            }
            claims.push(claim);
        }
        claim::drop_replaced(&mut claims);
        Ok(claims)
    }

    /// Returns the token that is cancelled when the server stops, which ends all waits.
    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// Completes at the next reload of the rules after this call.
    pub(crate) fn reloaded(&self) -> Notified<'_> {
        self.reloads.notified()
    }

    /// Counts the rules of a request. A rule does not count a request that it allows and another rule denies.
    fn count_all(&self, verdict: &Verdict<'_>) {
        for (i, claim) in verdict.claims.iter().enumerate() {
            let Some(rule) = claim.rule else { continue };
            rule.counts.add_hits(claim.hits);
            let over = verdict.outcomes[i].over;
            if !over && !verdict.admitted {
                continue;
            }
            let part = verdict.part(i);
            if let Some(status) = part.and_then(PartDecision::status).filter(|_| !over) {
                rule.counts.note_usage(status.used(), status.limit().max());
            }
            let decision = (!over, verdict.denies(i));
            self.count(rule, &claim.key, claim.detailed.as_deref(), decision);
        }
    }

    /// Counts a rule's decision on a request: whether the rule allows it, and otherwise whether it denies it or would deny it.
    pub(crate) fn count(
        &self,
        rule: &Arc<Rule>,
        key: &KeyBuf,
        detailed: Option<&str>,
        (allowed, denies): (bool, bool),
    ) {
        let add = |counts: &Counts| match (allowed, denies) {
            (true, _) => counts.allowed.fetch_add(1, Relaxed),
            (false, true) => counts.denied.fetch_add(1, Relaxed),
            (false, false) => counts.shadow_denied.fetch_add(1, Relaxed),
        };
        add(&rule.counts);
        if let Some(counts) = detailed.and_then(|label| self.detailed.counts(rule, label)) {
            add(&counts);
        }
        if denies {
            self.denied.note(rule, key.as_ref());
        }
    }
}

fn check(domain: &str, len: usize, what: &str) -> Result<(), Failure> {
    let text = match len {
        _ if domain.is_empty() => "domain is empty, expected the name of a domain".to_owned(),
        0 => format!("{what} is empty, expected at least one"),
        1..=MAX_DESCRIPTORS => return Ok(()),
        many => format!("{many} {what}, expected at most {MAX_DESCRIPTORS}"),
    };
    Err(Failure::Invalid(text))
}
