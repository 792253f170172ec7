//! Rules that arrive from a control plane, and the files that refine them.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::gauge;
use tracing::error;

use super::{VALID, Watch, apply, describe, run};
use crate::config::{Errors, on_a_line};
use crate::rules::RuleSet;
use crate::service::Service;
use crate::xds::messages::RateLimitConfig;

/// The most errors in a refusal, and the longest of them. Control planes end a stream with a long refusal.
const MAX_ERRORS: usize = 10;
const MAX_CHARS: usize = 1_000;

/// The rules in force, by their sources. Each source keeps what it last had without errors.
#[derive(Debug)]
pub(crate) struct Received {
    service: Arc<Service>,
    refined_by: Option<PathBuf>,
    sources: Mutex<Sources>,
}

#[derive(Debug)]
struct Sources {
    resources: Vec<RateLimitConfig>,
    refinements: RuleSet,
    /// The errors of the latest resources, and those of the files.
    refused: Option<Errors>,
    errors: Option<Errors>,
}

impl Received {
    /// Returns the rules before any has arrived.
    ///
    /// # Errors
    /// All errors of the files at `refined_by`.
    pub(crate) fn new(service: Arc<Service>, refined_by: Option<PathBuf>) -> Result<Self, Errors> {
        describe();
        let path = refined_by.as_deref();
        let read = |path| RuleSet::read_refinements(path, service.store().shared());
        let sources = Sources {
            resources: Vec::new(),
            refinements: path.map(read).transpose()?.unwrap_or_default(),
            refused: None,
            errors: None,
        };
        Ok(Self {
            service,
            refined_by,
            sources: Mutex::new(sources),
        })
    }

    /// Applies the rules that have arrived, or reports why they cannot be read.
    ///
    /// # Errors
    /// The first of their errors, as the reason of a refusal. The rules before then remain in force.
    pub(crate) fn receive(
        &self,
        resources: Result<Vec<RateLimitConfig>, String>,
    ) -> Result<(), String> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let read = resources.map_err(|error| Errors(vec![error]));
        let read = read.and_then(|resources| {
            let rules = self.read(&resources, &sources.refinements)?;
            Ok((rules, resources))
        });
        let short = |error: String| on_a_line(&error).chars().take(MAX_CHARS).collect();
        let read = read.map_err(|Errors(errors)| Errors(errors.into_iter().map(short).collect()));
        sources.refused = read.as_ref().err().cloned();
        let refusal = sources.refused.as_ref().map(|Errors(errors)| {
            let more = errors.len().saturating_sub(MAX_ERRORS);
            let first = errors.iter().take(MAX_ERRORS).cloned();
            let more = (more > 0).then(|| format!("and {more} more errors"));
            first.chain(more).collect::<Vec<_>>().join("\n")
        });
        let rules = read.map(|(rules, resources)| {
            sources.resources = resources;
            rules
        });
        apply(&self.service, rules, "the rules of the control plane");
        if refusal.is_none() {
            self.keep("refinements", sources.errors.clone());
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Reads the files again.
    fn reread(&self) {
        let Some(path) = &self.refined_by else { return };
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let read = RuleSet::read_refinements(path, self.service.store().shared());
        let read = read.and_then(|refinements| {
            let rules = self.read(&sources.resources, &refinements)?;
            Ok((rules, refinements))
        });
        sources.errors = read.as_ref().err().cloned();
        let rules = read.map(|(rules, refinements)| {
            sources.refinements = refinements;
            rules
        });
        apply(
            &self.service,
            rules,
            &format!("the configuration {}", path.display()),
        );
        if sources.errors.is_none() {
            self.keep("rules of the control plane", sources.refused.clone());
        }
    }

    fn read(
        &self,
        resources: &[RateLimitConfig],
        refinements: &RuleSet,
    ) -> Result<RuleSet, Errors> {
        let store = self.service.store().shared();
        RuleSet::receive(resources, refinements, store, Some(&self.service.rules()))
    }

    /// Reports errors of the other source for as long as it has any.
    fn keep(&self, source: &str, errors: Option<Errors>) {
        if let Some(errors) = errors {
            error!("the {source} still have errors; the old ones remain in force");
            gauge!(VALID).set(0);
            self.service.reload(Err(errors));
        }
    }

    /// Reads the files again when they change, and on SIGHUP. The future never ends.
    ///
    /// # Errors
    /// If SIGHUP cannot be received. Must be called within a tokio runtime.
    pub(crate) fn watch(self: Arc<Self>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let paths = self.refined_by.iter().cloned().collect();
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = sources.refinements.stamp;
        drop(sources);
        let watch = Watch::new(paths, Some(stamp))?;
        Ok(run(watch, move || self.reread()))
    }
}
