//! The rules: a configuration, compiled for lookups.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use limiter_core::{KeyBuf, Limiter, SharedStore};

use crate::config::{Config, Place};

/// The rules of a configuration over a store.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Arc<Rule>>,
}

impl Rules {
    /// Compiles a configuration. Rules with the name of a rule of `before` keep its counts.
    #[must_use]
    pub fn new(_config: &Config, _store: &SharedStore, _before: Option<&Self>) -> Self {
        Self::default()
    }

    /// Returns whether there is such a domain.
    #[must_use]
    pub fn knows(&self, _domain: &str) -> bool {
        false
    }

    /// Returns the rule of one descriptor and the key that it limits; `None` if no rule matches.
    #[must_use]
    pub fn find(&self, _domain: &str, _entries: &[(&str, &str)]) -> Option<Match<'_>> {
        None
    }

    /// Returns all rules, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }

    /// Returns the rule of requests that bring their own limit and match no rule with a limiter; `None` if there is no such domain.
    #[must_use]
    pub fn overrides(&self, _domain: &str) -> Option<&Arc<Rule>> {
        None
    }

    /// Returns the key of a request under [`overrides`](Self::overrides): its keys and values.
    #[must_use]
    pub fn override_key(_entries: &[(&str, &str)]) -> KeyBuf {
        KeyBuf::new()
    }
}

/// A rule that matches a descriptor.
#[derive(Debug)]
pub struct Match<'a> {
    /// The rule.
    pub rule: &'a Arc<Rule>,
    /// The values that the rule leaves open, as a tuple. The SHA-256 of longer keys than 1 KiB.
    pub key: KeyBuf,
    /// The rule's label in metrics for this descriptor, if it is to have one: `detailed_metric`, `value_to_metric`.
    pub detailed: Option<String>,
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// The domain.
    pub domain: String,
    /// The keys and the configured values, such as `source_cluster=proxy,destination_cluster`. The limiter is named `domain/path`.
    pub path: String,
    /// The configured name.
    pub name: Option<String>,
    /// The names of the rules that this rule replaces in a request that matches both.
    pub replaces: Vec<String>,
    /// What the rule does.
    pub effect: Effect,
    /// Whether it only counts and reports.
    pub shadow: bool,
    /// Whether it denies a request only together with all other rules of this kind that match the request.
    pub quota: bool,
    /// Whether metrics are labelled with all keys and values.
    pub detailed_metric: bool,
    /// The requests so far.
    pub counts: Arc<Counts>,
    /// Where it stands.
    pub place: Place,
}

/// What a rule does.
#[derive(Debug)]
pub enum Effect {
    /// Limits.
    Limit(Limiter),
    /// Denies always.
    Deny,
    /// Allows always, and says so.
    Unlimited,
    /// Allows always, as if no rule matched.
    Exempt,
}

/// Requests by outcome.
#[derive(Debug, Default)]
pub struct Counts {
    /// Allowed requests.
    pub allowed: AtomicU64,
    /// Denied requests.
    pub denied: AtomicU64,
    /// Requests that a rule in shadow mode would have denied. They are not counted as allowed.
    pub shadow_denied: AtomicU64,
}
