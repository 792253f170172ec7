//! Reads a domain's rules from a tree, and collects the errors.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use limiter_core::{Counting, Limiter, Policy, SharedStore, Window};

use super::level::{Descriptor, Level};
use super::metadata;
use super::tree::{Kind, Problem, Tree};
use super::{Counts, Domain, Effect, Label, Rule, UNITS, key};
use crate::config::Position;

/// A domain and a path.
pub(super) type Place<'a> = (&'a str, &'a str);

/// What all files share.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) store: &'a SharedStore,
    /// The counts of the rules before.
    pub(super) counts: &'a HashMap<Place<'a>, &'a Arc<Counts>>,
    /// Whether the rules are refinements, which contain only limits.
    pub(super) refines: bool,
    /// The rules whose limits replace those of the rules with their domain and path.
    pub(super) refinements: Option<&'a HashMap<Place<'a>, &'a Arc<Rule>>>,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        store: &'a SharedStore,
        counts: &'a HashMap<Place<'a>, &'a Arc<Counts>>,
    ) -> Self {
        Self {
            store,
            counts,
            refines: false,
            refinements: None,
        }
    }
}

pub(super) struct Reader<'a> {
    file: Arc<str>,
    source: &'a str,
    shared: Shared<'a>,
    domain: String,
    /// The descriptors from the top to the current one.
    branch: Vec<Step>,
    rules: Vec<Arc<Rule>>,
    problems: Vec<Problem>,
}

/// A descriptor on the way to a rule.
struct Step {
    key: String,
    /// The key and the configured value, as part of the rule's path.
    path: String,
    /// Whether the value is part of the rule's key.
    is_open: bool,
    /// Whether metrics are labelled with the value.
    value_to_metric: bool,
}

/// A file's domains, and their rules in order.
pub(super) type Content = (Vec<Domain>, Vec<Arc<Rule>>);

/// The fields of a mapping.
type Fields<'a> = HashMap<&'a str, &'a Tree>;

/// `name` identifies a file in the service that wrote it, and is ignored.
const DOMAIN: &[&str] = &["domain", "descriptors", "name"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "descriptors",
];
const RATE_LIMIT: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "policy",
    "counting",
    "lease",
];

/// The fields of a descriptor and of its `rate_limit` that refine a rule.
const REFINING: &[&str] = &["key", "value", "rate_limit", "descriptors"];
const REFINED: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "policy",
    "counting",
    "lease",
];

/// The path of overrides in lists. No rule has it: a `=` follows a key.
const OVERRIDES_PATH: &str = "=override";

/// Each override has its own policy.
const ANY_POLICY: Policy = limiter_core::policy!("1/1s");

impl<'a> Reader<'a> {
    /// Reads a file's text, in which each document is a domain.
    pub(super) fn read(
        file: &str,
        text: &'a [u8],
        shared: Shared<'a>,
    ) -> Result<Content, Vec<String>> {
        let one = |(line, column, problem): Problem| format!("{file}:{line}:{column}: {problem}");
        let source = std::str::from_utf8(text).map_err(|_| vec![one(not_utf8(text))])?;
        let trees = Tree::parse(source).map_err(|problem| vec![one(problem)])?;
        if trees.is_empty() {
            let problem = "expected a mapping, found nothing".to_owned();
            return Err(vec![one((1, 1, problem))]);
        }
        Reader::domains(file, source, &trees, shared)
    }

    /// Reads a file's documents, or a resource.
    pub(super) fn domains(
        file: &str,
        source: &'a str,
        trees: &'a [Tree],
        shared: Shared<'a>,
    ) -> Result<Content, Vec<String>> {
        let (domain, branch, rules, problems) = Default::default();
        let mut reader = Reader {
            file: file.into(),
            source,
            shared,
            domain,
            branch,
            rules,
            problems,
        };
        let domains = trees
            .iter()
            .filter_map(|tree| reader.domain(tree))
            .collect();
        if reader.problems.is_empty() {
            return Ok((domains, reader.rules));
        }
        reader.problems.sort();
        let file = reader.file;
        let placed = |(line, column, problem)| {
            let file = Arc::clone(&file);
            format!("{}: {problem}", Position { file, line, column })
        };
        Err(reader.problems.into_iter().map(placed).collect())
    }

    fn domain(&mut self, tree: &'a Tree) -> Option<Domain> {
        let fields = self.fields(tree, DOMAIN)?;
        self.domain = self
            .required_text(tree, &fields, "domain")
            .unwrap_or_default();
        let descriptors = self.list(&fields, "descriptors");
        let top = self.level(descriptors);
        let mut overrides = self.new_rule(
            OVERRIDES_PATH.to_owned(),
            fields.get("domain").unwrap_or(&tree),
        );
        let name = key::limiter_name(&self.domain, OVERRIDES_PATH);
        overrides.effect = Effect::Limit(Limiter::new(name, ANY_POLICY, self.shared.store.clone()));
        Some(Domain {
            top,
            overrides: Arc::new(overrides),
        })
    }

    fn level(&mut self, descriptors: &'a [Tree]) -> Level {
        let mut level = Level::default();
        let mut places = HashMap::new();
        for tree in descriptors {
            let Some((key, value, descriptor)) = self.descriptor(tree) else {
                continue;
            };
            if let Some(Tree { line, column, .. }) =
                places.insert((key.clone(), value.clone()), tree)
            {
                let text = match line {
                    0 => format!("defined twice: {}", key::path_of(&key, value.as_deref())),
                    _ => format!("the descriptor at {line}:{column} has the same key and value"),
                };
                self.problem(tree, text);
            }
            level.add(key, value, descriptor);
        }
        level
    }

    /// Reads a descriptor: its key, its value, and its rules.
    fn descriptor(&mut self, tree: &'a Tree) -> Option<(String, Option<String>, Descriptor)> {
        let fields = self.fields(
            tree,
            if self.shared.refines {
                REFINING
            } else {
                DESCRIPTOR
            },
        )?;
        let key = self.required_text(tree, &fields, "key");
        if let (Some(key), Some(at)) = (&key, fields.get("key"))
            && key.contains('*')
        {
            self.problem(at, "expected a key without `*`: wildcards are for values");
        }
        let value = self.text(&fields, "value");
        let is_wildcard = value.as_ref().is_some_and(|value| value.contains('*'));
        let is_shared = self.flag(&fields, "share_threshold");
        if is_shared && !is_wildcard {
            self.problem(
                fields.get("share_threshold").unwrap_or(&tree),
                "`share_threshold` needs a value with `*`",
            );
        }
        let open_key = key.clone().unwrap_or_default();
        let value_to_metric = self.flag(&fields, "value_to_metric");
        self.branch.push(Step {
            path: key::path_of(&open_key, value.as_deref()),
            is_open: value.is_none() || (is_wildcard && !is_shared),
            value_to_metric,
            key: open_key,
        });
        let descriptors = self.list(&fields, "descriptors");
        let rule = self
            .rule(tree, &fields, descriptors.is_empty())
            .map(Arc::new);
        self.rules.extend(rule.clone());
        let below = self.level(descriptors);
        self.branch.pop();
        Some((key?, value, Descriptor { rule, below }))
    }

    /// Returns the rule of the last descriptor of the branch. One with neither a limit nor descriptors exempts its requests.
    fn rule(&mut self, tree: &'a Tree, fields: &Fields<'a>, is_last: bool) -> Option<Rule> {
        let mut rule = self.new_rule(self.path(), tree);
        (rule.shadow, rule.quota) = (
            self.flag(fields, "shadow_mode"),
            self.flag(fields, "quota_mode"),
        );
        let is_detailed = self.flag(fields, "detailed_metric");
        if let Some(metadata) = fields.get("metadata") {
            let entries = self.mapping(metadata).unwrap_or_default();
            rule.metadata =
                Some(metadata::of(entries, self.source)).filter(|it| !it.fields.is_empty());
        }
        match fields.get("rate_limit") {
            Some(limit) => self.rate_limit(limit, &mut rule)?,
            None if is_last && self.shared.refines => {
                self.problem(tree, "expected `rate_limit`");
            }
            None if is_last => {}
            None => return None,
        }
        let refinements = self.shared.refinements;
        if let Some(other) = refinements.and_then(|all| all.get(&(&*rule.domain, &*rule.path))) {
            rule.effect = other.effect.clone();
            rule.keeps_charges = other.keeps_charges;
            rule.refined = Some(other.position.clone());
        }
        let label = |step: &Step| match step.is_open && (is_detailed || step.value_to_metric) {
            true => Label::Open(step.key.clone()),
            false => Label::Fixed(step.path.clone()),
        };
        let label: Box<[Label]> = self.branch.iter().map(label).collect();
        rule.label = label
            .iter()
            .any(|label| matches!(label, Label::Open(_)))
            .then_some(label);
        rule.open = self
            .branch
            .iter()
            .enumerate()
            .filter(|(_, step)| step.is_open)
            .map(|(i, _)| i)
            .collect();
        Some(rule)
    }

    /// Returns the path of the current descriptor.
    fn path(&self) -> String {
        let steps: Vec<_> = self.branch.iter().map(|step| &*step.path).collect();
        steps.join(",")
    }

    /// Returns a rule without a limit.
    fn new_rule(&self, path: String, tree: &Tree) -> Rule {
        let counts = self
            .shared
            .counts
            .get(&(&*self.domain, &*path))
            .map(|counts| Arc::clone(counts));
        Rule {
            domain: self.domain.clone(),
            path,
            name: None,
            replaces: Vec::new(),
            effect: Effect::Exempt,
            shadow: false,
            quota: false,
            keeps_charges: true,
            metadata: None,
            counts: counts.unwrap_or_default(),
            position: Position {
                file: Arc::clone(&self.file),
                line: tree.line,
                column: tree.column,
            },
            own: OnceLock::new(),
            charging: OnceLock::new(),
            names: OnceLock::new(),
            open: Box::default(),
            label: None,
            refined: None,
        }
    }

    /// Reads a rule's limit and its names.
    fn rate_limit(&mut self, tree: &'a Tree, rule: &mut Rule) -> Option<()> {
        let fields = self.fields(
            tree,
            if self.shared.refines {
                REFINED
            } else {
                RATE_LIMIT
            },
        )?;
        rule.name = self.text(&fields, "name");
        for element in self.list(&fields, "replaces") {
            let Some(replaced) = self.fields(element, &["name"]) else {
                continue;
            };
            let Some(other) = self.required_text(element, &replaced, "name") else {
                continue;
            };
            if Some(&other) == rule.name.as_ref() {
                self.problem(
                    element,
                    format!(
                        "expected the name of another rule, found this rule's name \"{other}\""
                    ),
                );
            }
            rule.replaces.push(other);
        }
        if self.flag(&fields, "unlimited") {
            self.alone(
                &fields,
                "unlimited",
                &["unit", "policy", "counting", "lease"],
            );
            rule.effect = Effect::Unlimited;
            return Some(());
        }
        let (field, policy) = if let Some(policy) = self.text(&fields, "policy") {
            self.alone(&fields, "policy", &["unit", "requests_per_unit", "lease"]);
            ("policy", policy)
        } else {
            let (requests, window) = self.requests_per_unit(tree, &fields)?;
            if requests == 0 {
                self.alone(&fields, "requests_per_unit: 0", &["counting", "lease"]);
                rule.effect = Effect::Deny;
                return Some(());
            }
            match self.text(&fields, "lease") {
                Some(lease) => ("lease", format!("{requests}/{window}+{lease}")),
                None => ("requests_per_unit", format!("{requests}/{window}")),
            }
        };
        match policy.parse::<Policy>() {
            Ok(policy) => {
                let counting = self.counting(&fields);
                if counting == Some(Counting::Attempts) && policy.lease().is_some() {
                    let text = "a lease cannot be combined with `counting: attempts`";
                    self.problem(fields.get(field)?, text);
                }
                rule.keeps_charges = counting != Some(Counting::Admitted);
                let policy = policy.with_counting(counting.unwrap_or_default());
                let name = key::limiter_name(&rule.domain, &rule.path);
                rule.effect = Effect::Limit(Limiter::new(name, policy, self.shared.store.clone()));
            }
            Err(error) => self.problem(fields.get(field)?, error),
        }
        Some(())
    }

    fn counting(&mut self, fields: &Fields<'a>) -> Option<Counting> {
        match self.text(fields, "counting")?.as_str() {
            "admitted" => Some(Counting::Admitted),
            "attempts" => Some(Counting::Attempts),
            _ => self.expected(fields.get("counting")?, "admitted or attempts"),
        }
    }

    /// Returns the requests and the window.
    fn requests_per_unit(&mut self, tree: &'a Tree, fields: &Fields<'a>) -> Option<(u64, Window)> {
        let requests = match fields.get("requests_per_unit") {
            Some(Tree {
                kind: Kind::Integer(requests),
                ..
            }) => Some(*requests),
            Some(other) => self.expected(other, "a whole number"),
            // As in Envoy's service. Its clients leave zeros out.
            None if fields.contains_key("unit") => Some(0),
            None => {
                self.problem(
                    tree,
                    "expected `requests_per_unit`, `policy` or `unlimited: true`",
                );
                None
            }
        };
        let unit = self.required_text(tree, fields, "unit")?;
        match UNITS
            .iter()
            .find(|(known, _)| unit.eq_ignore_ascii_case(known.as_str_name()))
        {
            Some((_, policy)) => Some((requests?, policy.longest_window())),
            None => self.expected(
                fields.get("unit")?,
                "second, minute, hour, day, week, month or year",
            ),
        }
    }

    /// Reports fields that cannot be combined with `field`.
    fn alone(&mut self, fields: &Fields<'a>, field: &str, others: &[&str]) {
        for other in others {
            if let Some(at) = fields.get(other)
                && at.text(self.source) != Some("")
            {
                self.problem(at, format!("`{other}` cannot be combined with `{field}`"));
            }
        }
    }

    /// Returns the fields that are not null.
    fn fields(&mut self, tree: &'a Tree, allowed: &[&str]) -> Option<Fields<'a>> {
        let mut fields = Fields::new();
        for (key, value) in self.mapping(tree)? {
            match key.text(self.source) {
                Some(name) if allowed.contains(&name) => {
                    if fields.insert(name, value).is_some() {
                        self.problem(key, format!("duplicate field `{name}`"));
                    }
                }
                _ => self
                    .expected(key, format!("one of the fields {}", allowed.join(", ")))
                    .unwrap_or_default(),
            }
        }
        fields.retain(|_, value| !matches!(value.kind, Kind::Nothing));
        Some(fields)
    }

    fn mapping(&mut self, tree: &'a Tree) -> Option<&'a [(Tree, Tree)]> {
        match &tree.kind {
            Kind::Mapping(entries) => Some(entries),
            _ => self.expected(tree, "a mapping"),
        }
    }

    /// Returns a field's elements; none if it is absent.
    fn list(&mut self, fields: &Fields<'a>, name: &str) -> &'a [Tree] {
        match fields.get(name) {
            None => &[],
            Some(Tree {
                kind: Kind::List(elements),
                ..
            }) => elements,
            Some(other) => self.expected(other, "a list").unwrap_or_default(),
        }
    }

    /// Returns a text that is not empty, `None` if it is absent or empty.
    fn text(&mut self, fields: &Fields<'a>, name: &str) -> Option<String> {
        let tree = fields.get(name)?;
        match tree.text(self.source) {
            Some(text) => Some(text.to_owned()).filter(|text| !text.is_empty()),
            None => self.expected(tree, "a text"),
        }
    }

    fn required_text(&mut self, tree: &'a Tree, fields: &Fields<'a>, name: &str) -> Option<String> {
        let problems = self.problems.len();
        let text = self.text(fields, name);
        if text.is_none() && self.problems.len() == problems {
            self.problem(
                fields.get(name).unwrap_or(&tree),
                format!("expected `{name}` with a text"),
            );
        }
        text
    }

    fn flag(&mut self, fields: &Fields<'a>, name: &str) -> bool {
        match fields.get(name) {
            None => false,
            Some(Tree {
                kind: Kind::Bool(value),
                ..
            }) => *value,
            Some(other) => self.expected(other, "true or false").unwrap_or_default(),
        }
    }

    fn expected<T>(&mut self, tree: &Tree, what: impl Display) -> Option<T> {
        let found = match (&tree.kind, tree.text(self.source)) {
            (Kind::List(_), _) => "a list".to_owned(),
            (Kind::Mapping(_), _) => "a mapping".to_owned(),
            (_, None) => "nothing".to_owned(),
            (Kind::Text(_), Some(text)) => {
                format!("{:?}", text.chars().take(100).collect::<String>())
            }
            (_, Some(text)) => text.to_owned(),
        };
        self.problem(tree, format!("expected {what}, found {found}"));
        None
    }

    fn problem(&mut self, tree: &Tree, text: impl Display) {
        let text = match (tree.line, &*self.branch) {
            (0, [_, ..]) => format!("{}: {text}", self.path()),
            _ => text.to_string(),
        };
        self.problems.push((tree.line, tree.column, text));
    }
}

fn not_utf8(text: &[u8]) -> Problem {
    let valid = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let lines = valid.split('\n');
    let column = lines
        .clone()
        .next_back()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    (
        lines.count() as u64,
        column as u64,
        "expected UTF-8".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_key() {
        let reference = include_str!("../../docs/configuration.md");
        let sections = [
            ("## Document", DOMAIN),
            ("## Descriptor", DESCRIPTOR),
            ("## `rate_limit`", RATE_LIMIT),
        ];
        for (title, fields) in sections {
            let (_, section) = reference.split_once(&format!("\n{title}\n")).unwrap();
            let section = section.split("\n## ").next().unwrap();
            for field in fields {
                assert!(
                    section.contains(&format!("\n| `{field}` |")),
                    "{title}: {field}"
                );
            }
        }
    }
}
