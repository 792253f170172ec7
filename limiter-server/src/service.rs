//! The service: decides on requests, whichever protocol brought them.

mod claim;
mod reply;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::FutureExt;
use limiter_core::request::{AllOf, Background, Part};
use limiter_core::{Error, ErrorKind, KeyBuf, SharedStore};
use limiter_tower::{HeaderFormat, RateLimitHeaders};
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Errors;
use crate::denied::DeniedKeys;
use crate::detailed::Detailed;
use crate::proto::{RateLimitRequest, RateLimitResponse};
use crate::rules::{Counts, Rule, Rules};
use crate::store::Store;

use self::claim::{Claim, Class};

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
            _ => Self::Store(error),
        }
    }
}

/// The rules, the store, and the counts so far.
#[derive(Debug)]
pub struct Service {
    rules: ArcSwap<Rules>,
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
    /// Refunds that no response waits for.
    refunds: TaskTracker,
    background: Background,
    stop: CancellationToken,
}

impl Service {
    /// Returns a service of rules over this store.
    #[must_use]
    pub fn new(rules: Rules, store: Store, headers: Headers) -> Self {
        let fields = match headers {
            Headers::Ratelimit => Some(RateLimitHeaders::default()),
            Headers::Legacy => Some(RateLimitHeaders::none().format(HeaderFormat::Separate)),
            Headers::None => None,
        };
        let refunds = TaskTracker::new();
        let tracker = refunds.clone();
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
            refunds,
            stop: CancellationToken::new(),
            background: Background::new(move |refund| drop(tracker.spawn(refund))),
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
    /// A configuration with errors changes nothing; [`errors`](Self::errors) returns them until the next reload.
    pub fn reload(&self, rules: Result<Rules, Errors>) {
        let errors = rules.map(|rules| {
            let rules = Arc::new(rules);
            self.rules.store(Arc::clone(&rules));
            self.detailed.retain(&rules);
            self.denied.retain(&rules);
        });
        self.errors.store(errors.err().map(Arc::new));
    }

    /// Returns the errors of the configuration, if the latest reload had any.
    pub fn errors(&self) -> Option<Arc<Errors>> {
        self.errors.load_full()
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
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

    /// Counts a descriptor that no rule matches. Returns whether it is allowed.
    ///
    /// # Errors
    /// With [`Unmatched::Error`].
    pub(crate) fn allows_unmatched(
        &self,
        rules: &Rules,
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

    /// Decides on all descriptors of a request together. If one is over its limit, none is charged. A denial does not wait for
    /// the refunds of other charges.
    ///
    /// `timeout` is how long the caller waits. If the store has not responded after three quarters of it, the outage choice
    /// decides. Default: [the service's](Self::with_caller_timeout).
    ///
    /// # Errors
    /// [`Failure::Invalid`] without a domain or descriptors, or with too many. [`Failure::Store`] if a rule's store failed.
    ///
    /// # Cancel safety
    /// Dropping the future refunds its charges in the background.
    pub async fn decide(
        &self,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, Failure> {
        check(request)?;
        let rules = self.rules.load();
        match self.decide_at_once(&rules, request, timeout.or(self.caller_timeout)) {
            Ok(answer) => answer,
            Err(mut question) => self.answer(&mut question).await,
        }
    }

    /// Decides if the store need not wait; otherwise returns the pending decision. A question takes kilobytes, so it is made in
    /// place, and leaves the stack only then.
    fn decide_at_once<'r>(
        &self,
        rules: &'r Rules,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<Result<RateLimitResponse, Failure>, Box<Question<'r>>> {
        let mut question = Question {
            claims: SmallVec::new(),
            together: AllOf::new(),
            refused: false,
        };
        if let Err(failure) = question.ask(self, rules, request, timeout) {
            return Ok(Err(failure));
        }
        self.answer(&mut question).now_or_never().ok_or_else(|| {
            question.together.refund_in(self.background.clone());
            Box::new(question)
        })
    }

    /// Makes the calls and counts the verdicts. Dropping the question refunds the charges, unless the request is admitted. Goes on
    /// where it was dropped.
    async fn answer(&self, question: &mut Question<'_>) -> Result<RateLimitResponse, Failure> {
        let Question {
            claims,
            together,
            refused,
        } = question;
        let admitted = together.decide_with(|_| false, pending()).await && !*refused;
        let spent = claim::rule(claims, together.parts());
        let admitted = admitted && !spent;
        if let Some(error) = together.take_error() {
            return Err(error.into());
        }
        if admitted {
            together.confirm();
        }
        self.count_all(claims, together.parts(), admitted, spent);
        Ok(reply::new(
            claims,
            together.parts(),
            (admitted, spent),
            self.fields.as_ref(),
        ))
    }

    /// Returns the token that is cancelled when the server stops, which ends all waits.
    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// Waits for the refunds of earlier responses, but no longer than `timeout`.
    pub(crate) async fn flush(&self, timeout: Duration) {
        self.refunds.close();
        let _ = tokio::time::timeout(timeout, self.refunds.wait()).await;
    }

    /// Counts the rules of a request. A rule counts nothing if it would have allowed a request that another rule denies.
    fn count_all(
        &self,
        claims: &[Claim<'_>],
        parts: &[Part<'_, SharedStore>],
        admitted: bool,
        spent: bool,
    ) {
        for claim in claims {
            if let Some(rule) = claim.rule {
                rule.counts.add_hits(claim.hits);
            }
            let verdict = match claim.over {
                _ if claim.denies(spent) => Verdict::Denied,
                true => Verdict::ShadowDenied,
                false if admitted => Verdict::Allowed,
                false => continue,
            };
            if let Some(rule) = claim.rule {
                if let (Verdict::Allowed, Some(status)) =
                    (verdict, claim.part(parts).and_then(Part::status))
                {
                    rule.counts.note_usage(status.used(), status.limit().max());
                }
                self.count(rule, &claim.key, claim.detailed.as_deref(), verdict);
            }
        }
    }

    /// Counts a rule's verdict on a request.
    pub(crate) fn count(
        &self,
        rule: &Arc<Rule>,
        key: &KeyBuf,
        detailed: Option<&str>,
        verdict: Verdict,
    ) {
        let add = |counts: &Counts| match verdict {
            Verdict::Allowed => counts.allowed.fetch_add(1, Relaxed),
            Verdict::Denied => counts.denied.fetch_add(1, Relaxed),
            Verdict::ShadowDenied => counts.shadow_denied.fetch_add(1, Relaxed),
        };
        add(&rule.counts);
        if let Some(counts) = detailed.and_then(|label| self.detailed.counts(rule, label)) {
            add(&counts);
        }
        if verdict == Verdict::Denied {
            self.denied.note(rule, key.as_ref());
        }
    }
}

/// A rule's decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    ShadowDenied,
}

/// A request with the rules of its descriptors.
struct Question<'r> {
    claims: SmallVec<[Claim<'r>; 4]>,
    together: AllOf<'r, SharedStore>,
    /// Whether the request is refused without the store, because something can never fit. The rest is then only looked up.
    refused: bool,
}

impl<'r> Question<'r> {
    fn ask(
        &mut self,
        service: &Service,
        rules: &'r Rules,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<(), Failure> {
        let Self {
            claims,
            together,
            refused,
        } = self;
        for (i, descriptor) in request.descriptors.iter().enumerate() {
            let claim = Claim::new(rules, request, descriptor);
            let mut claim =
                claim.map_err(|text| Failure::Invalid(format!("descriptors[{i}].{text}")))?;
            if claim.rule.is_none() {
                let allowed = service.allows_unmatched(rules, &request.domain);
                if !allowed.map_err(|text| Failure::Invalid(format!("descriptors[{i}]: {text}")))? {
                    claim.refuse();
                }
            }
            claims.push(claim);
        }
        claim::drop_replaced(claims);
        *refused = claims
            .iter()
            .any(|claim| claim.class == Class::Enforced && claim.is_hopeless());
        let has = |quota| {
            claims
                .iter()
                .any(|claim| (claim.class == Class::Quota) == quota)
        };
        // Quotas deny together, after the last call, and refund other rules' charges.
        let options = AllOf::new().defer_refunds();
        let options = if has(true) && has(false) {
            options.refundable()
        } else {
            options
        };
        *together = match timeout {
            Some(timeout) => options.timeout(timeout - timeout / 4),
            None => options,
        };
        claims
            .iter_mut()
            .for_each(|claim| claim.ask(together, *refused));
        Ok(())
    }
}

fn check(request: &RateLimitRequest) -> Result<(), Failure> {
    let text = match request.descriptors.len() {
        _ if request.domain.is_empty() => {
            "domain is empty, expected the name of a domain".to_owned()
        }
        0 => "descriptors is empty, expected at least one".to_owned(),
        1..=MAX_DESCRIPTORS => return Ok(()),
        many => format!("{many} descriptors, expected at most {MAX_DESCRIPTORS}"),
    };
    Err(Failure::Invalid(text))
}
