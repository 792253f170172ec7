//! Reads a domain from a tree, and collects what is wrong.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Counting, Limit, Policy};

use super::tree::{Kind, Problem, Tree};
use super::{Domain, Node, Place, Quota, RateLimit, Value};

pub(super) struct Reader<'a> {
    file: Arc<str>,
    source: &'a str,
    problems: Vec<Problem>,
}

/// The fields of a mapping.
type Fields<'a> = HashMap<&'a str, &'a Tree>;

const DOMAIN: &[&str] = &["domain", "descriptors"];
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
const RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces", "policy", "counting"];

/// The units and their seconds. A month has 30 days and a year 365, as in Envoy's service.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

impl<'a> Reader<'a> {
    /// Reads the text of a file.
    pub(super) fn read(file: &str, text: &'a [u8]) -> Result<Domain, Vec<String>> {
        let file: Arc<str> = file.into();
        let one = |(line, column, problem): Problem| vec![format!("{file}:{line}:{column}: {problem}")];
        let source = std::str::from_utf8(text).map_err(|_| one(not_utf8(text)))?;
        let tree = Tree::parse(source).map_err(one)?;
        let mut reader = Self { file: file.clone(), source, problems: Vec::new() };
        match (reader.domain(&tree), &mut reader.problems) {
            (Some(domain), problems) if problems.is_empty() => Ok(domain),
            (_, problems) => {
                problems.sort();
                Err(problems.drain(..).flat_map(one).collect())
            }
        }
    }

    fn domain(&mut self, tree: &'a Tree) -> Option<Domain> {
        let fields = self.fields(tree, DOMAIN)?;
        let name = self.required_text(tree, &fields, "domain");
        let nodes = self.nodes(&fields);
        let place = self.place(fields.get("domain").unwrap_or(&tree));
        Some(Domain { name: name?, nodes, place })
    }

    fn nodes(&mut self, fields: &Fields<'a>) -> Vec<Node> {
        let (mut nodes, mut places) = (Vec::new(), HashMap::new());
        for element in self.list(fields, "descriptors") {
            let Some(node) = self.node(element) else { continue };
            match places.entry((node.key.clone(), node.value.clone())) {
                Entry::Occupied(first) => {
                    let Place { line, column, .. }: &Place = first.get();
                    let first = format!("{line}:{column}");
                    self.problem(element, format!("the descriptor at {first} has the same key and value"));
                }
                Entry::Vacant(entry) => _ = entry.insert(node.place.clone()),
            }
            nodes.push(node);
        }
        nodes
    }

    fn node(&mut self, tree: &'a Tree) -> Option<Node> {
        let fields = self.fields(tree, DESCRIPTOR)?;
        let key = self.required_text(tree, &fields, "key");
        if let (Some(key), Some(at)) = (&key, fields.get("key"))
            && key.contains('*')
        {
            self.problem(at, "expected a key without `*`: wildcards are for values");
        }
        let value = match self.text(&fields, "value") {
            None => Value::Any,
            Some(text) if text.contains('*') => Value::Wildcard(text),
            Some(text) => Value::Exact(text),
        };
        let share_threshold = self.flag(&fields, "share_threshold");
        if share_threshold && !matches!(value, Value::Wildcard(_)) {
            self.problem(fields.get("share_threshold").unwrap_or(&tree), "`share_threshold` needs a value with `*`");
        }
        if let Some(metadata) = fields.get("metadata") {
            self.mapping(metadata);
        }
        Some(Node {
            value,
            limit: fields.get("rate_limit").and_then(|limit| self.rate_limit(limit)),
            shadow: self.flag(&fields, "shadow_mode"),
            quota: self.flag(&fields, "quota_mode"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            share_threshold,
            children: self.nodes(&fields),
            place: self.place(tree),
            key: key?,
        })
    }

    fn rate_limit(&mut self, tree: &'a Tree) -> Option<RateLimit> {
        let fields = self.fields(tree, RATE_LIMIT)?;
        let name = self.text(&fields, "name");
        let mut replaces = Vec::new();
        for element in self.list(&fields, "replaces") {
            let Some(replaced) = self.fields(element, &["name"]) else { continue };
            let Some(other) = self.required_text(element, &replaced, "name") else { continue };
            if Some(&other) == name.as_ref() {
                self.problem(element, format!("expected the name of another rule, found this rule's name \"{other}\""));
            }
            replaces.push(other);
        }
        let quota = if self.flag(&fields, "unlimited") {
            self.alone(&fields, "unlimited", &["unit", "policy", "counting"]);
            Some(Quota::Unlimited)
        } else if let Some(text) = self.text(&fields, "policy") {
            self.alone(&fields, "policy", &["unit", "requests_per_unit"]);
            match text.parse() {
                Ok(policy) => self.counted(&fields, policy),
                Err(error) => self.wrong(&fields, "policy", error),
            }
        } else {
            self.requests_per_unit(tree, &fields)
        };
        Some(RateLimit { quota: quota?, name, replaces })
    }

    fn requests_per_unit(&mut self, tree: &'a Tree, fields: &Fields<'a>) -> Option<Quota> {
        let requests = match fields.get("requests_per_unit") {
            Some(Tree { kind: Kind::Integer(requests), .. }) => Some(*requests),
            Some(other) => self.expected(other, "a whole number"),
            None => {
                self.problem(tree, "expected `requests_per_unit`, `policy` or `unlimited: true`");
                None
            }
        };
        let unit = self.required_text(tree, fields, "unit");
        let seconds = unit.and_then(|unit| match UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)) {
            Some((_, seconds)) => Some(*seconds),
            None => self.expected(fields.get("unit")?, "second, minute, hour, day, week, month or year"),
        });
        let window = Duration::from_secs(seconds?);
        let requests = requests?;
        if requests == 0 {
            self.alone(fields, "requests_per_unit: 0", &["counting"]);
            return Some(Quota::Nothing);
        }
        match Limit::new(requests, window) {
            Ok(limit) => self.counted(fields, limit.into()),
            Err(error) => self.wrong(fields, "requests_per_unit", error),
        }
    }

    /// Applies the field `counting`.
    fn counted(&mut self, fields: &Fields<'a>, policy: Policy) -> Option<Quota> {
        let counting = match self.text(fields, "counting").as_deref() {
            None | Some("admitted") => Counting::Admitted,
            Some("attempts") => Counting::Attempts,
            Some(_) => self.expected(fields.get("counting")?, "admitted or attempts")?,
        };
        Some(Quota::Policy(policy.with_counting(counting)))
    }

    /// Reports a field's value.
    fn wrong<T>(&mut self, fields: &Fields<'a>, name: &str, error: impl Display) -> Option<T> {
        self.problem(fields.get(name)?, error);
        None
    }

    /// Reports fields that have no meaning beside `field`.
    fn alone(&mut self, fields: &Fields<'a>, field: &str, others: &[&str]) {
        for other in others {
            if let Some(at) = fields.get(other) {
                self.problem(at, format!("expected no `{other}` beside `{field}`"));
            }
        }
    }

    fn fields(&mut self, tree: &'a Tree, allowed: &[&str]) -> Option<Fields<'a>> {
        let mut fields = Fields::new();
        for (key, value) in self.mapping(tree)? {
            match key.text(self.source) {
                Some(name) if allowed.contains(&name) => {
                    if fields.insert(name, value).is_some() {
                        self.problem(key, format!("the field `{name}` is there twice"));
                    }
                }
                _ => self.expected(key, format!("one of the fields {}", allowed.join(", "))).unwrap_or_default(),
            }
        }
        Some(fields)
    }

    fn mapping(&mut self, tree: &'a Tree) -> Option<&'a [(Tree, Tree)]> {
        match &tree.kind {
            Kind::Mapping(entries) => Some(entries),
            _ => self.expected(tree, "a mapping"),
        }
    }

    /// Returns the elements of a field, none if it is absent.
    fn list(&mut self, fields: &Fields<'a>, name: &str) -> &'a [Tree] {
        match fields.get(name) {
            None | Some(Tree { kind: Kind::Nothing, .. }) => &[],
            Some(Tree { kind: Kind::List(elements), .. }) => elements,
            Some(other) => self.expected(other, "a list").unwrap_or_default(),
        }
    }

    /// Returns a text that is not empty, `None` if it is absent or empty.
    fn text(&mut self, fields: &Fields<'a>, name: &str) -> Option<String> {
        let tree = fields.get(name).filter(|tree| !matches!(tree.kind, Kind::Nothing))?;
        match tree.text(self.source) {
            Some(text) => Some(text.to_owned()).filter(|text| !text.is_empty()),
            None => self.expected(tree, "a text"),
        }
    }

    fn required_text(&mut self, tree: &'a Tree, fields: &Fields<'a>, name: &str) -> Option<String> {
        let problems = self.problems.len();
        let text = self.text(fields, name);
        if text.is_none() && self.problems.len() == problems {
            self.problem(fields.get(name).unwrap_or(&tree), format!("expected `{name}` with a text"));
        }
        text
    }

    fn flag(&mut self, fields: &Fields<'a>, name: &str) -> bool {
        match fields.get(name) {
            None | Some(Tree { kind: Kind::Nothing, .. }) => false,
            Some(Tree { kind: Kind::Bool(value), .. }) => *value,
            Some(other) => self.expected(other, "true or false").unwrap_or_default(),
        }
    }

    fn expected<T>(&mut self, tree: &Tree, what: impl Display) -> Option<T> {
        let found = match (&tree.kind, tree.text(self.source)) {
            (Kind::List(_), _) => "a list".to_owned(),
            (Kind::Mapping(_), _) => "a mapping".to_owned(),
            (_, None) => "nothing".to_owned(),
            (Kind::Text(_), Some(text)) => format!("{:?}", text.chars().take(100).collect::<String>()),
            (_, Some(text)) => text.to_owned(),
        };
        self.problem(tree, format!("expected {what}, found {found}"));
        None
    }

    fn problem(&mut self, tree: &Tree, text: impl Display) {
        self.problems.push((tree.line, tree.column, text.to_string()));
    }

    fn place(&self, tree: &Tree) -> Place {
        Place { file: self.file.clone(), line: tree.line, column: tree.column }
    }
}

fn not_utf8(text: &[u8]) -> Problem {
    let valid = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let lines = valid.split('\n');
    let column = lines.clone().next_back().unwrap_or_default().chars().count() + 1;
    (lines.count() as u64, column as u64, "expected UTF-8".to_owned())
}
