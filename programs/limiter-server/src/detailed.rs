//! Counts by key, of the rules whose metrics ask for them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use crate::rules::{Counts, Rule, RuleSet};

/// The largest number of labels, each with three series. Requests of further keys are counted by rule only.
const MAX_LABELS: usize = 10_000 / 3;

/// Counts by domain and label.
#[derive(Debug, Default)]
pub(crate) struct Detailed(RwLock<HashMap<(String, String), Labelled>>);

/// The path of a rule, and the counts of one of its labels.
#[derive(Debug)]
struct Labelled(String, Arc<Counts>);

impl Detailed {
    /// Returns the counts of a label. `None` if there are too many labels already.
    pub(crate) fn counts(&self, rule: &Rule, label: &str) -> Option<Arc<Counts>> {
        let name = (rule.domain.clone(), label.to_owned());
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&name).map(|labelled| Arc::clone(&labelled.1));
        let is_full = all.len() >= MAX_LABELS;
        drop(all);
        if found.is_some() || is_full {
            return found;
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = all.len() >= MAX_LABELS;
        match all.entry(name) {
            Entry::Vacant(_) if is_full => None,
            entry => Some(Arc::clone(
                &entry
                    .or_insert_with(|| Labelled(rule.path.clone(), Arc::default()))
                    .1,
            )),
        }
    }

    /// Forgets the labels of removed rules, and of rules without labels.
    pub(crate) fn retain(&self, rules: &RuleSet) {
        let labelled = rules.iter().filter(|rule| rule.is_detailed());
        let kept: HashSet<_> = labelled.map(|rule| (&*rule.domain, &*rule.path)).collect();
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(domain, _), Labelled(path, _)| kept.contains(&(&**domain, &**path)));
    }

    /// Calls `visit` with each domain, label and its counts.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&str, &str, &Counts)) {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .for_each(|((domain, label), Labelled(_, counts))| visit(domain, label, counts));
    }
}
