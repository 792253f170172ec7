//! Counts by key, of the rules whose metrics ask for them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::rules::{Counts, Rule};

/// The largest number of series. Requests of further keys are counted by rule only.
const MAX_SERIES: usize = 10_000;

/// Counts by domain and label.
#[derive(Debug, Default)]
pub(crate) struct Detailed(RwLock<HashMap<String, HashMap<String, Arc<Counts>>>>);

impl Detailed {
    /// Returns the counts of a label; `None` if there are too many labels already.
    pub(crate) fn counts(&self, rule: &Rule, label: &str) -> Option<Arc<Counts>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&rule.domain).and_then(|labels| labels.get(label)).cloned();
        let is_full = known.values().map(HashMap::len).sum::<usize>() >= MAX_SERIES;
        drop(known);
        if found.is_some() || is_full {
            return found;
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let labels = all.entry(rule.domain.clone()).or_default();
        Some(Arc::clone(labels.entry(label.to_owned()).or_default()))
    }

    /// Calls `visit` with each domain, label and its counts.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&str, &str, &Counts)) {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (domain, labels) in &*all {
            labels.iter().for_each(|(label, counts)| visit(domain, label, counts));
        }
    }
}
