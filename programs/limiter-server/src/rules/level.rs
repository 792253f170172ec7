//! The tree of rules: one level for each entry of a descriptor.

use std::collections::HashMap;
use std::sync::Arc;

use super::Rule;

/// Requests only look up, so they cannot make collisions: a fast hash is safe.
pub(super) type Map<T> = HashMap<Box<[u8]>, T, foldhash::fast::RandomState>;

/// The descriptors below a descriptor.
#[derive(Debug, Default)]
pub(super) struct Level(Map<Values>);

/// The descriptors with one key.
#[derive(Debug, Default)]
struct Values {
    exact: Map<Descriptor>,
    /// In the order of the file: the first match applies.
    wildcards: Vec<(Pattern, Descriptor)>,
    any: Option<Descriptor>,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) below: Level,
}

impl Level {
    /// Adds a descriptor, which matches any value if it has none.
    pub(super) fn add(&mut self, key: String, value: Option<String>, descriptor: Descriptor) {
        let values = self.0.entry(key.into_bytes().into()).or_default();
        match value {
            None => values.any = Some(descriptor),
            Some(value) if value.contains('*') => {
                values.wildcards.push((Pattern::new(&value), descriptor));
            }
            Some(value) => _ = values.exact.insert(value.into_bytes().into(), descriptor),
        }
    }

    /// Returns a descriptor's rule: its last entry's, if each entry matches a descriptor below the previous entry's.
    pub(super) fn find<B: AsRef<[u8]>>(&self, entries: &[(B, B)]) -> Option<&Arc<Rule>> {
        let ((key, value), rest) = entries.split_first()?;
        let mut descriptor = self.0.get(key.as_ref())?.find(value.as_ref())?;
        for (key, value) in rest {
            descriptor = descriptor.below.0.get(key.as_ref())?.find(value.as_ref())?;
        }
        descriptor.rule.as_ref()
    }
}

impl Values {
    fn find(&self, value: &[u8]) -> Option<&Descriptor> {
        let wildcard = || {
            self.wildcards
                .iter()
                .find(|(pattern, _)| pattern.matches(value))
                .map(|(_, descriptor)| descriptor)
        };
        self.exact
            .get(value)
            .or_else(wildcard)
            .or(self.any.as_ref())
    }
}

/// A text in which each `*` stands for any text.
#[derive(Debug)]
struct Pattern {
    start: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    end: Box<[u8]>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut parts = text.split('*').map(|part| part.as_bytes().into());
        let start = parts.next().unwrap_or_default();
        let mut middle: Vec<Box<[u8]>> = parts.collect();
        let end = middle.pop().unwrap_or_default();
        Self {
            start,
            middle: middle.into(),
            end,
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        let Some(mut rest) = value
            .strip_prefix(&*self.start)
            .and_then(|rest| rest.strip_suffix(&*self.end))
        else {
            return false;
        };
        self.middle
            .iter()
            .filter(|part| !part.is_empty())
            .all(|part| {
                let found = rest.windows(part.len()).position(|found| *found == **part);
                let after = found.and_then(|start| rest.get(start + part.len()..));
                rest = after.unwrap_or_default();
                after.is_some()
            })
    }
}
