//! A layer's report on each request.

use limiter_core::request::{PartDecision, PartOutcome};
use limiter_core::{Decision, Error, ErrorKind, Name, Policy, SharedStore, Status};

use crate::rule::Rule;
use crate::rulings::Applied;

/// A rule's outcome for a request.
///
/// It holds no key, so it can be logged and counted without redaction. See
/// [`LayerBuilder::observe`](crate::LayerBuilder::observe).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Observation<'a> {
    /// The name of the limiter.
    pub limiter: Name,
    /// The policy that decided the request.
    pub policy: &'a Policy,
    /// Whether the rule is a [shadow](Rule::shadow), whose denials have no effect.
    pub shadow: bool,
    /// The outcome.
    pub outcome: RuleOutcome<'a>,
}

/// A rule's outcome for a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RuleOutcome<'a> {
    /// The request was admitted and charged.
    Admitted(&'a Decision),
    /// The request was denied, or would have been denied by a shadow rule.
    Denied(&'a Decision),
    /// The rule did not charge the request: its cost was 0, or another rule denied it.
    Uncharged(&'a Status),
    /// The cost is above a limit's maximum.
    CostExceedsLimit,
    /// The rule did not apply: an exemption, or no key where [`MissingKey::Skip`](crate::MissingKey::Skip) is chosen.
    Skipped,
    /// The request has no key and was refused.
    MissingKey,
    /// The store failed, and the rule did not apply.
    FailedOpen(&'a Error),
    /// The store failed, and the request was refused.
    FailedClosed(&'a Error),
}

impl RuleOutcome<'_> {
    /// Returns a word for the outcome, for a label or a log line.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Admitted(_) => "admitted",
            Self::Denied(_) => "denied",
            Self::Uncharged(_) => "uncharged",
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::Skipped => "skipped",
            Self::MissingKey => "missing_key",
            Self::FailedOpen(_) => "failed_open",
            Self::FailedClosed(_) => "failed_closed",
        }
    }
}

impl<'a> Observation<'a> {
    /// Returns the report. `None` for a rule that was never asked.
    pub(crate) fn new(
        rule: &'a Rule,
        applied: &'a Applied,
        part: Option<&'a PartDecision<'_, SharedStore>>,
    ) -> Option<Self> {
        let outcome = match applied {
            Applied::Skipped => RuleOutcome::Skipped,
            Applied::Rejected(_) => RuleOutcome::MissingKey,
            Applied::Called => of_part(part?),
        };
        let policy = part
            .and_then(PartDecision::own_policy)
            .unwrap_or(rule.limiter.policy());
        Some(Self {
            limiter: rule.limiter.name(),
            policy,
            shadow: rule.shadow,
            outcome,
        })
    }
}

fn of_part<'a>(part: &'a PartDecision<'_, SharedStore>) -> RuleOutcome<'a> {
    match part.outcome() {
        PartOutcome::Charged(decision) => RuleOutcome::Admitted(decision),
        PartOutcome::Denied(decision) => RuleOutcome::Denied(decision),
        PartOutcome::Uncharged(status) => RuleOutcome::Uncharged(status),
        PartOutcome::Failed(error) if error.kind() == ErrorKind::CostExceedsLimit => {
            RuleOutcome::CostExceedsLimit
        }
        PartOutcome::Failed(error) if part.denies() => RuleOutcome::FailedClosed(error),
        PartOutcome::Failed(error) => RuleOutcome::FailedOpen(error),
    }
}
