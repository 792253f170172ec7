//! Compiles a configuration.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use limiter_core::{Limiter, Policy, SharedStore};

use super::level::{Level, Node, Pattern};
use super::{Counts, Domain, Effect, Label, Rule, Rules, key};
use crate::config::{self, Config, Place, Quota, Value};

pub(super) struct Builder<'a> {
    store: &'a SharedStore,
    /// The counts of the rules before, by domain and path.
    counts: HashMap<(&'a str, &'a str), &'a Arc<Counts>>,
    list: Vec<Arc<Rule>>,
}

/// The descriptors from the top to one, with the path of each.
type Branch<'a> = Vec<(&'a config::Node, String)>;

impl<'a> Builder<'a> {
    pub(super) fn new(store: &'a SharedStore, before: Option<&'a Rules>) -> Self {
        let all = |before: &'a Rules| before.iter().chain(before.domains.values().map(|domain| &domain.overrides));
        let rules = before.into_iter().flat_map(all);
        let counts = rules.map(|rule| ((&*rule.domain, &*rule.path), &rule.counts)).collect();
        Self { store, counts, list: Vec::new() }
    }

    pub(super) fn rules(mut self, config: &'a Config) -> Rules {
        let domains = config.domains.iter().map(|domain| (domain.name.as_str().into(), self.domain(domain))).collect();
        Rules { domains, list: self.list }
    }

    fn domain(&mut self, domain: &'a config::Domain) -> Domain {
        let top = self.level(&domain.name, &domain.nodes, &mut Vec::new());
        let limiter = Limiter::new(key::overrides_name(&domain.name), ANY_POLICY, self.store.clone());
        let overrides = Rule {
            effect: Effect::Limit(limiter),
            ..self.rule_without_limit(&domain.name, OVERRIDES_PATH.to_owned(), &domain.place)
        };
        Domain { top, overrides: Arc::new(overrides) }
    }

    fn level(&mut self, domain: &str, nodes: &'a [config::Node], branch: &mut Branch<'a>) -> Level {
        let mut level = Level::default();
        for node in nodes {
            let value = match &node.value {
                Value::Any => None,
                Value::Exact(value) | Value::Wildcard(value) => Some(value.as_str()),
            };
            branch.push((node, key::path_of(&node.key, value)));
            let rule = self.rule(domain, branch);
            let compiled = Node { rule, below: self.level(domain, &node.children, branch) };
            branch.pop();
            let values = level.0.entry(node.key.as_str().into()).or_default();
            match &node.value {
                Value::Any => values.any = Some(compiled),
                Value::Exact(value) => _ = values.exact.insert(value.as_str().into(), compiled),
                Value::Wildcard(value) => values.wildcards.push((Pattern::new(value), compiled)),
            }
        }
        level
    }

    /// Returns the rule of the last descriptor of a branch.
    fn rule(&mut self, domain: &str, branch: &Branch<'a>) -> Option<Arc<Rule>> {
        let (node, _) = branch.last()?;
        let path = branch.iter().map(|(_, path)| path.as_str()).collect::<Vec<_>>().join(",");
        let effect = match node.limit.as_ref().map(|limit| &limit.quota) {
            Some(Quota::Policy(policy)) => {
                Effect::Limit(Limiter::new(key::limiter_name(domain, &path), policy, self.store.clone()))
            }
            Some(Quota::Nothing) => Effect::Deny,
            Some(Quota::Unlimited) => Effect::Unlimited,
            None if node.children.is_empty() => Effect::Exempt,
            None => return None,
        };
        let is_open = |node: &config::Node| match node.value {
            Value::Any => true,
            Value::Exact(_) => false,
            Value::Wildcard(_) => !node.share_threshold,
        };
        let label = |(above, path): &(&config::Node, String)| {
            if is_open(above) && (node.detailed_metric || above.value_to_metric) {
                Label::Open(above.key.clone())
            } else {
                Label::Fixed(path.clone())
            }
        };
        let label: Box<[Label]> = branch.iter().map(label).collect();
        let rule = Arc::new(Rule {
            name: node.limit.as_ref().and_then(|limit| limit.name.clone()),
            replaces: node.limit.as_ref().map_or_else(Vec::new, |limit| limit.replaces.clone()),
            effect,
            shadow: node.shadow,
            quota: node.quota,
            open: branch.iter().enumerate().filter(|(_, (node, _))| is_open(node)).map(|(i, _)| i).collect(),
            label: label.iter().any(|label| matches!(label, Label::Open(_))).then_some(label),
            ..self.rule_without_limit(domain, path, &node.place)
        });
        self.list.push(rule.clone());
        Some(rule)
    }

    fn rule_without_limit(&self, domain: &str, path: String, place: &Place) -> Rule {
        let counts = self.counts.get(&(domain, &*path)).map(|counts| Arc::clone(counts));
        Rule {
            domain: domain.to_owned(),
            path,
            name: None,
            replaces: Vec::new(),
            effect: Effect::Exempt,
            shadow: false,
            quota: false,
            counts: counts.unwrap_or_default(),
            place: place.clone(),
            names: OnceLock::new(),
            open: Box::default(),
            label: None,
        }
    }
}

/// The path of overrides in lists. No rule has it: a `=` follows a key.
const OVERRIDES_PATH: &str = "=override";

/// Each override has its own policy.
const ANY_POLICY: Policy = limiter_core::policy!("1/1s");
