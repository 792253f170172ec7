//! The rules: files in the format of Envoy's rate limit service, validated and compiled for lookups.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use limiter_core::{Counting, Error, KeyBuf, LimitStatus, Limiter, Policy, SharedStore, policy};
use limiter_tower::FieldNames;
use pbjson_types::Struct;

use crate::config::{Errors, Paths, Position, on_a_line, stamp};
use crate::proto::Unit;
use crate::xds::messages::RateLimitConfig;

mod key;
mod lease;
mod level;
pub(crate) mod metadata;
mod reader;
mod resource;
mod tree;

use level::Level;
use reader::{Content, Place, Reader, Shared};

/// The units, and the largest limit that a descriptor can bring for each. As the policy of its limiter, it keeps all that a limit
/// counts when its number changes. A month has 30 days and a year 365, as in Envoy's service.
pub(crate) static UNITS: [(Unit, Policy); 7] = [
    (Unit::Second, policy!("4294967295/1s")),
    (Unit::Minute, policy!("4294967295/1m")),
    (Unit::Hour, policy!("4294967295/1h")),
    (Unit::Day, policy!("4294967295/1d")),
    (Unit::Week, policy!("4294967295/7d")),
    (Unit::Month, policy!("4294967295/30d")),
    (Unit::Year, policy!("4294967295/365d")),
];

/// The rules of a configuration over a store.
#[derive(Debug, Default)]
pub struct RuleSet {
    domains: level::Map<Domain>,
    list: Vec<Arc<Rule>>,
    ignored: Vec<PathBuf>,
    /// The places of refinements without a rule.
    unused: Vec<String>,
    /// The stamp of the files when they were read.
    pub(crate) stamp: u64,
}

#[derive(Debug)]
struct Domain {
    top: Level,
    overrides: Arc<Rule>,
}

impl RuleSet {
    /// Reads a file, or all files of a folder whose names end in `.yaml` or `.yml`. Rules with the domain and the path of a rule
    /// of `before` keep its counts.
    ///
    /// # Errors
    /// All errors of all files.
    pub fn read(path: &Path, store: &SharedStore, before: Option<&Self>) -> Result<Self, Errors> {
        Self::read_files(path, store, before, false)
    }

    /// Reads files like [`read`](Self::read) whose limits are to replace those of rules from elsewhere.
    ///
    /// # Errors
    /// All errors of all files, among them fields that are not part of a limit.
    pub fn read_refinements(path: &Path, store: &SharedStore) -> Result<Self, Errors> {
        Self::read_files(path, store, None, true)
    }

    fn read_files(
        path: &Path,
        store: &SharedStore,
        before: Option<&Self>,
        refines: bool,
    ) -> Result<Self, Errors> {
        // Taken before the files are read, so that later changes are read again.
        let stamp = stamp(&[path.to_owned()]);
        let paths = Paths::list(path).map_err(|error| Errors(vec![error]))?;
        let counts = Self::counts(before);
        let shared = Shared {
            refines,
            ..Shared::new(store, &counts)
        };
        let rules = Self::collect(paths.read().map(|file| {
            let (file, text) = file.map_err(|error| vec![error])?;
            Reader::read(&file, &text, shared)
        }))?;
        Ok(Self {
            ignored: paths.ignored,
            stamp,
            ..rules
        })
    }

    /// Reads one file from memory. Errors contain `file` as its name.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(
        file: &str,
        text: &[u8],
        store: &SharedStore,
        before: Option<&Self>,
    ) -> Result<Self, Errors> {
        let counts = Self::counts(before);
        Self::collect([Reader::read(file, text, Shared::new(store, &counts))])
    }

    /// Reads the domains that a control plane sent, with the limits of `refinements` in place of its own.
    ///
    /// # Errors
    /// All errors of all domains.
    pub(crate) fn receive(
        resources: &[RateLimitConfig],
        refinements: &Self,
        store: &SharedStore,
        before: Option<&Self>,
    ) -> Result<Self, Errors> {
        let counts = Self::counts(before);
        let by_place = refinements.list.iter();
        let by_place = by_place.map(|rule| ((&*rule.domain, &*rule.path), rule));
        let shared = Shared {
            refinements: Some(&by_place.collect()),
            ..Shared::new(store, &counts)
        };
        let rules = Self::collect(resources.iter().map(|config| {
            let tree = [resource::tree(config)];
            Reader::domains(
                &format!("xds/{}", on_a_line(&config.name)),
                "",
                &tree,
                shared,
            )
        }))?;
        let used: HashSet<_> = rules
            .list
            .iter()
            .filter_map(|rule| rule.refined.as_ref())
            .collect();
        let unused = refinements
            .list
            .iter()
            .filter(|rule| !used.contains(&rule.position));
        let unused = unused.map(|rule| {
            let (place, [domain, path]) = (&rule.position, rule.on_a_line());
            format!("{place}: without effect, because no rule \"{path}\" of the domain \"{domain}\" has arrived by xDS")
        });
        Ok(Self {
            ignored: refinements.ignored.clone(),
            unused: unused.collect(),
            stamp: refinements.stamp,
            ..rules
        })
    }

    fn counts(before: Option<&Self>) -> HashMap<Place<'_>, &Arc<Counts>> {
        let counts = before.into_iter().flat_map(Self::with_overrides);
        counts
            .map(|rule| ((&*rule.domain, &*rule.path), &rule.counts))
            .collect()
    }

    fn collect(
        contents: impl IntoIterator<Item = Result<Content, Vec<String>>>,
    ) -> Result<Self, Errors> {
        let mut rules = Self::default();
        let mut errors = Vec::new();
        for content in contents {
            match content {
                Ok((domains, list)) => {
                    for domain in domains {
                        let Rule {
                            domain: name,
                            position,
                            ..
                        } = &*domain.overrides;
                        if let Some(first) = rules.domains.get(name.as_bytes()) {
                            let first = &first.overrides.position;
                            errors.push(format!(
                                "{position}: the domain \"{name}\" is already defined at {first}"
                            ));
                        }
                        rules.domains.insert(name.as_bytes().into(), domain);
                    }
                    rules.list.extend(list);
                }
                Err(more) => errors.extend(more),
            }
        }
        if errors.is_empty() {
            Ok(rules)
        } else {
            Err(Errors(errors))
        }
    }

    /// Returns a warning for each ignored file and folder, and for each lease that makes a limit smaller without a use.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let leases = self.list.iter().filter_map(|rule| lease::warning(rule));
        self.warnings_of_files().chain(leases)
    }

    /// Returns a warning for each ignored file and folder, and for each refinement without its rule.
    pub(crate) fn warnings_of_files(&self) -> impl Iterator<Item = String> {
        let ignored = self.ignored.iter().map(|path| {
            format!(
                "{}: ignored, expected a file *.yaml or *.yml",
                path.display()
            )
        });
        ignored.chain(self.unused.iter().cloned())
    }

    /// Returns the rule of one descriptor and the key that it limits. `None` if no rule matches.
    ///
    /// The entries are pairs of a key and a value, which are any bytes: Envoy copies values from header fields. For each, a rule with its value comes before a wildcard that matches it, and that before a rule for any value.
    #[must_use]
    pub fn find<B: AsRef<[u8]>>(&self, domain: &str, entries: &[(B, B)]) -> Option<Match<'_>> {
        let rule = self.domains.get(domain.as_bytes())?.top.find(entries)?;
        Some(Match {
            rule,
            key: key::of_open(&rule.open, entries),
            detailed: rule.label(entries),
        })
    }

    /// Returns all rules of files, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.list.iter()
    }

    /// Returns all rules, including [`overrides`](Self::overrides).
    pub fn with_overrides(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.list
            .iter()
            .chain(self.domains.values().map(|domain| &domain.overrides))
    }

    /// Returns the rule of descriptors that bring their own limit and match no rule with [`Effect::Limit`]. `None` if there is
    /// no such domain. Its policy does not matter.
    #[must_use]
    pub fn overrides(&self, domain: &str) -> Option<&Arc<Rule>> {
        self.domains
            .get(domain.as_bytes())
            .map(|domain| &domain.overrides)
    }

    /// Returns a descriptor's key for [`overrides`](Self::overrides): its keys and values.
    #[must_use]
    pub fn override_key<B: AsRef<[u8]>>(entries: &[(B, B)]) -> KeyBuf {
        key::of_parts(
            entries
                .iter()
                .flat_map(|(key, value)| [key.as_ref(), value.as_ref()]),
        )
    }
}

/// A rule that matches a descriptor.
#[derive(Debug)]
pub struct Match<'a> {
    /// The rule.
    pub rule: &'a Arc<Rule>,
    /// The values that the rule leaves open, as a tuple; their SHA-256 if they are longer than 1 KiB. Always
    /// text.
    pub key: KeyBuf,
    /// The path with this descriptor's values for its open parts, if the rule's metrics are labelled with them.
    pub detailed: Option<String>,
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// The domain.
    pub domain: String,
    /// The keys and the configured values, such as `source_cluster=proxy,destination_cluster`. A limiter's name is
    /// `domain/path`, so a rule keeps its history when its limit changes.
    pub path: String,
    /// The configured name.
    pub name: Option<String>,
    /// The names of the rules that this rule replaces in a request that matches both.
    pub replaces: Vec<String>,
    /// What the rule does.
    pub effect: Effect,
    /// Whether it only counts and reports.
    pub shadow: bool,
    /// Whether it denies a request only together with all other rules of this kind that match.
    pub quota: bool,
    /// Whether a descriptor's own cost counts in any case: above the maximum, and if another descriptor denies the request.
    pub keeps_charges: bool,
    /// What responses return if the rule does not deny.
    pub metadata: Option<Struct>,
    /// The requests so far.
    pub counts: Arc<Counts>,
    /// Where it stands.
    pub position: Position,
    /// The limiters of limits that descriptors bring, by unit, made with the first such limit.
    own: OnceLock<[Limiter; 7]>,
    /// The limiter of charges that count in any case, made with the first of them.
    charging: OnceLock<Limiter>,
    /// The names of the limits in header fields, made with the first response.
    names: OnceLock<FieldNames>,
    /// The entries whose values are the key.
    open: Box<[usize]>,
    /// The parts of the label, if metrics show values.
    label: Option<Box<[Label]>>,
    /// Where the file refines it from which it has its limit.
    refined: Option<Position>,
}

/// One entry in a label.
#[derive(Clone, Debug)]
enum Label {
    /// A key with a configured value, or without a value.
    Fixed(String),
    /// A key, which the value of the request follows.
    Open(String),
}

impl Rule {
    /// Returns the rule's name for clients: its name, otherwise its path.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.path)
    }

    /// Returns where it stands, and where its limit stands if another file refines it.
    pub(crate) fn place(&self) -> String {
        let position = &self.position;
        match &self.refined {
            None => position.to_string(),
            Some(refined) => format!("{position}, refined at {refined}"),
        }
    }

    /// Returns the domain and the path on one line.
    pub(crate) fn on_a_line(&self) -> [String; 2] {
        [&self.domain, &self.path].map(|text| on_a_line(text))
    }

    /// Returns the limiter, if the rule has one.
    #[must_use]
    pub fn limiter(&self) -> Option<&Limiter> {
        match &self.effect {
            Effect::Limit(limiter) => Some(limiter),
            _ => None,
        }
    }

    /// Returns the limiter of limits per `unit` that descriptors bring. `None` if the rule has no limiter.
    ///
    /// Each unit has its own log, because an append with a short window drops entries that a longer one counts.
    #[must_use]
    pub fn own_limiter(&self, unit: Unit) -> Option<&Limiter> {
        let limiter = self.limiter()?;
        let own = self.own.get_or_init(|| {
            UNITS.clone().map(|(unit, policy)| {
                let name = format!("{},={}", limiter.name(), unit.as_str_name());
                Limiter::new(name, policy, limiter.store().clone())
            })
        });
        own.get(UNITS.iter().position(|(other, _)| *other == unit)?)
    }

    /// Returns the limiter of charges that count even if they do not fit. `None` if the rule has no limiter.
    pub(crate) fn charging_limiter(&self) -> Option<&Limiter> {
        let limiter = self.limiter()?;
        Some(self.charging.get_or_init(|| {
            let policy = limiter.policy().clone().with_counting(Counting::Attempts);
            Limiter::new(limiter.name(), policy, limiter.store().clone())
        }))
    }

    /// Removes the logs of a key. Returns how many units counted in which windows, or `None` if there was no log.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn reset(&self, key: &[u8]) -> Result<Option<Vec<String>>, Error> {
        let own = UNITS.iter().filter_map(|(unit, _)| self.own_limiter(*unit));
        let mut removed = None;
        for limiter in self.limiter().into_iter().chain(own) {
            let status = limiter.status(key).await?;
            if limiter.reset(key).await? {
                let shown = |limit: &LimitStatus| {
                    format!("{} in {}", limit.used(), limit.limit().stated_window())
                };
                let all = removed.get_or_insert_with(Vec::new);
                all.extend(status.limits().iter().map(shown));
            }
        }
        Ok(removed)
    }

    /// Returns the names of the rule's limits in header fields; `None` without a limiter.
    pub(crate) fn names(&self) -> Option<&FieldNames> {
        let limiter = self.limiter()?;
        Some(
            self.names
                .get_or_init(|| FieldNames::new(self.shown(), limiter.policy())),
        )
    }

    /// Whether metrics are labelled with values of requests.
    #[must_use]
    pub fn is_detailed(&self) -> bool {
        self.label.is_some()
    }

    fn label<B: AsRef<[u8]>>(&self, entries: &[(B, B)]) -> Option<String> {
        let labels =
            self.label
                .as_ref()?
                .iter()
                .zip(entries)
                .map(|(label, (_, value))| match label {
                    Label::Fixed(text) => text.clone(),
                    Label::Open(key) => key::path_of(key, Some(&key::text(value.as_ref()))),
                });
        let label = labels.collect::<Vec<_>>().join(",");
        Some(key::hashed(label.as_bytes()).unwrap_or(label))
    }
}

/// What a rule does.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Limits.
    Limit(Limiter),
    /// Denies always: `requests_per_unit: 0`.
    Deny,
    /// Always allows, by `unlimited: true`.
    Unlimited,
    /// Allows always, as if no rule matched: no `rate_limit`, and no descriptors below.
    Exempt,
}

impl Effect {
    /// Returns the name of this kind of effect.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Limit(_) => "limit",
            Self::Deny => "deny",
            Self::Unlimited => "unlimited",
            Self::Exempt => "exempt",
        }
    }
}

/// The largest cost of a request that [`Counts::hits`] counts. Envoy's own are below.
const MAX_HITS: u64 = u32::MAX as u64;

/// Requests by outcome. Sums stay at their maximum.
#[derive(Debug, Default)]
pub struct Counts {
    /// Allowed requests.
    pub allowed: AtomicU64,
    /// Denied requests.
    pub denied: AtomicU64,
    /// Requests that a rule in shadow mode would have denied. They are not counted as allowed.
    pub shadow_denied: AtomicU64,
    /// The costs of all requests, allowed or denied.
    pub hits: AtomicU64,
    /// Allowed requests that left at most a fifth of their limit.
    pub near_limit: AtomicU64,
    /// For a domain's [`overrides`](RuleSet::overrides): descriptors of the domain that match no rule.
    pub unmatched: AtomicU64,
}

impl Counts {
    /// Adds the cost of a request, at most [`MAX_HITS`]: one request must not bring the sum to its maximum.
    pub(crate) fn add_hits(&self, cost: u64) {
        let cost = cost.min(MAX_HITS);
        let _ = self
            .hits
            .fetch_update(Relaxed, Relaxed, |hits| Some(hits.saturating_add(cost)));
    }

    /// Notes the usage of the binding limit after an allowed request.
    pub(crate) fn note_usage(&self, used: u64, max: u64) {
        if u128::from(used) * 5 >= u128::from(max) * 4 {
            self.near_limit.fetch_add(1, Relaxed);
        }
    }

    /// Returns the counts with the names of their outcomes.
    pub(crate) fn by_outcome(&self) -> [(&'static str, u64); 3] {
        [
            ("allowed", &self.allowed),
            ("denied", &self.denied),
            ("shadow_denied", &self.shadow_denied),
        ]
        .map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }
}
