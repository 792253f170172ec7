//! The keys that were denied lately, for the page.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::rules::Rule;

/// The number of keys that [`DeniedKeys`] keeps.
pub const KEPT: usize = 1_000;

/// A bounded memory of the keys that were denied most recently.
#[derive(Debug, Default)]
pub struct DeniedKeys(Mutex<Memory>);

/// A key that was denied.
#[derive(Clone, Debug)]
pub struct DeniedKey {
    /// The rule that denied it.
    pub rule: Arc<Rule>,
    /// The key.
    pub key: Box<[u8]>,
    /// The number of denials since the key entered the memory.
    pub times: u64,
    /// The time of the latest denial.
    pub last: Instant,
    /// The number of the latest denial. Times may be equal.
    number: u64,
}

#[derive(Debug, Default)]
struct Memory {
    /// By the address of the rule's counts, which a reload keeps. The entries hold the counts, so the address stays theirs.
    rules: HashMap<usize, HashMap<Box<[u8]>, DeniedKey>>,
    keys: usize,
    denials: u64,
}

impl DeniedKeys {
    /// Notes a denial.
    pub fn note(&self, rule: &Arc<Rule>, key: &[u8]) {
        let now = Instant::now();
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.denials += 1;
        let number = memory.denials;
        let keys = memory.rules.entry(Arc::as_ptr(&rule.counts).addr()).or_default();
        if let Some(denied) = keys.get_mut(key) {
            denied.times += 1;
            (denied.last, denied.number) = (now, number);
            return;
        }
        let denied = DeniedKey { rule: Arc::clone(rule), key: key.into(), times: 1, last: now, number };
        keys.insert(denied.key.clone(), denied);
        memory.keys += 1;
        // Evicts in batches, so a new key costs amortised O(1).
        if memory.keys >= 2 * KEPT {
            memory.evict();
        }
    }

    /// Forgets a key, for example because its log was reset.
    pub fn forget(&self, rule: &Rule, key: &[u8]) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = memory.rules.get_mut(&Arc::as_ptr(&rule.counts).addr());
        if keys.is_some_and(|keys| keys.remove(key).is_some()) {
            memory.keys -= 1;
        }
    }

    /// Returns at most `count` of the newest [`KEPT`] keys, newest first.
    #[must_use]
    pub fn latest(&self, count: usize) -> Vec<DeniedKey> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest: Vec<&DeniedKey> = memory.rules.values().flat_map(HashMap::values).collect();
        latest.sort_unstable_by_key(|denied| Reverse(denied.number));
        latest.into_iter().take(count.min(KEPT)).cloned().collect()
    }
}

impl Memory {
    /// Keeps the newest keys.
    fn evict(&mut self) {
        let mut numbers: Vec<u64> = self.rules.values().flat_map(HashMap::values).map(|denied| denied.number).collect();
        let (_, &mut oldest, _) = numbers.select_nth_unstable_by_key(KEPT - 1, |number| Reverse(*number));
        self.rules.retain(|_, keys| {
            keys.retain(|_, denied| denied.number >= oldest);
            !keys.is_empty()
        });
        self.keys = self.rules.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::SharedStore;
    use limiter_memory::MemoryStore;

    use super::*;
    use crate::config::Config;
    use crate::rules::Rules;

    fn rules(path: &str, before: Option<&Rules>) -> Rules {
        let text = format!("domain: edge\ndescriptors: [{{key: {path}}}]");
        let store: SharedStore = Arc::new(MemoryStore::new());
        Rules::new(&Config::parse("limits.yaml", text.as_bytes()).unwrap(), &store, before)
    }

    fn rule(rules: &Rules) -> &Arc<Rule> {
        rules.iter().next().unwrap()
    }

    fn shown(denied: &DeniedKeys, count: usize) -> Vec<(String, String, u64)> {
        let text = |denied: DeniedKey| {
            (denied.rule.path.clone(), String::from_utf8_lossy(&denied.key).into_owned(), denied.times)
        };
        denied.latest(count).into_iter().map(text).collect()
    }

    #[test]
    fn the_latest_come_first_and_a_reload_changes_nothing() {
        let (logins, searches) = (rules("login", None), rules("search", None));
        let (denied, login, search) = (DeniedKeys::default(), rule(&logins), rule(&searches));
        for (rule, key) in [(login, "a"), (search, "a"), (login, "b"), (login, "a")] {
            denied.note(rule, key.as_bytes());
        }
        let reloaded = rules("search", Some(&searches));
        denied.note(rule(&reloaded), b"a");
        let expected = [("search", "a", 2), ("login", "a", 2), ("login", "b", 1)];
        let expected = expected.map(|(path, key, times)| (path.to_owned(), key.to_owned(), times));
        assert_eq!(shown(&denied, 9), expected);
        assert_eq!(shown(&denied, 1), expected[..1]);
        denied.forget(search, b"a");
        denied.forget(search, b"never denied");
        assert_eq!(shown(&denied, 9), expected[1..]);
    }

    #[test]
    fn memory_is_bounded() {
        let (denied, rules) = (DeniedKeys::default(), ["login", "search"].map(|path| rules(path, None)));
        for number in 0..10 * KEPT {
            denied.note(rule(&rules[number % 2]), number.to_string().as_bytes());
            assert!(denied.0.lock().unwrap().keys < 2 * KEPT);
        }
        let latest = shown(&denied, usize::MAX);
        assert_eq!(latest.len(), KEPT);
        let newest = (9 * KEPT..10 * KEPT).rev().map(|number| number.to_string());
        assert!(latest.into_iter().map(|(_, key, _)| key).eq(newest));
    }
}
