//! The tree of rules: one level for each entry of a descriptor.

use std::collections::HashMap;
use std::sync::Arc;

use super::Rule;

/// Requests only look up, so they cannot make collisions: a fast hash is safe.
pub(super) type Map<T> = HashMap<Box<str>, T, foldhash::fast::RandomState>;

/// The descriptors below a descriptor.
#[derive(Debug, Default)]
pub(super) struct Level(Map<Values>);

/// The descriptors with one key.
#[derive(Debug, Default)]
struct Values {
    exact: Map<Node>,
    /// In the order of the file: the first that matches applies.
    wildcards: Vec<(Pattern, Node)>,
    any: Option<Node>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) below: Level,
}

impl Level {
    /// Adds a descriptor, which matches any value if it has none.
    pub(super) fn add(&mut self, key: String, value: Option<String>, node: Node) {
        let values = self.0.entry(key.into()).or_default();
        match value {
            None => values.any = Some(node),
            Some(value) if value.contains('*') => values.wildcards.push((Pattern::new(&value), node)),
            Some(value) => _ = values.exact.insert(value.into(), node),
        }
    }

    /// Returns the rule of a descriptor: that of its last entry, if each entry has a node below that of the entry before.
    pub(super) fn find(&self, entries: &[(&str, &str)]) -> Option<&Arc<Rule>> {
        let ((key, value), rest) = entries.split_first()?;
        let mut node = self.0.get(*key)?.find(value)?;
        for (key, value) in rest {
            node = node.below.0.get(*key)?.find(value)?;
        }
        node.rule.as_ref()
    }
}

impl Values {
    fn find(&self, value: &str) -> Option<&Node> {
        let wildcard = || self.wildcards.iter().find(|(pattern, _)| pattern.matches(value)).map(|(_, node)| node);
        self.exact.get(value).or_else(wildcard).or(self.any.as_ref())
    }
}

/// A text in which each `*` stands for any text.
#[derive(Debug)]
struct Pattern {
    start: Box<str>,
    middle: Box<[Box<str>]>,
    end: Box<str>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut parts = text.split('*').map(Box::from);
        let start = parts.next().unwrap_or_default();
        let mut middle: Vec<Box<str>> = parts.collect();
        let end = middle.pop().unwrap_or_default();
        Self { start, middle: middle.into(), end }
    }

    fn matches(&self, value: &str) -> bool {
        let Some(mut rest) = value.strip_prefix(&*self.start).and_then(|rest| rest.strip_suffix(&*self.end)) else {
            return false;
        };
        self.middle.iter().all(|part| match rest.split_once(&**part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }
}
