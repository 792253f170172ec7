//! Rules that arrive from a control plane, and the files that refine them.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::gauge;
use tracing::error;

use super::{VALID, Watch, apply, describe, run};
use crate::config::Errors;
use crate::rules::RuleSet;
use crate::service::Service;
use crate::xds::messages::RateLimitConfig;

/// The most errors in a refusal.
const MAX_ERRORS: usize = 10;

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
    /// The errors of the files, if the latest have any.
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
            errors: None,
        };
        Ok(Self {
            service,
            refined_by,
            sources: Mutex::new(sources),
        })
    }

    /// Applies the rules that have arrived.
    ///
    /// # Errors
    /// The first of their errors, as the reason of a refusal. The rules before then remain in force.
    pub(crate) fn receive(&self, resources: Vec<RateLimitConfig>) -> Result<(), String> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.read(&resources, &sources.refinements);
        let refusal = read.as_ref().err().map(|Errors(errors)| {
            let more = errors.len().saturating_sub(MAX_ERRORS);
            let first = errors.iter().take(MAX_ERRORS).cloned();
            let more = (more > 0).then(|| format!("and {more} more errors"));
            first.chain(more).collect::<Vec<_>>().join("\n")
        });
        apply(&self.service, read, "the rules of the control plane");
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                sources.resources = resources;
                self.keep(sources.errors.clone());
                Ok(())
            }
        }
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
    }

    fn read(
        &self,
        resources: &[RateLimitConfig],
        refinements: &RuleSet,
    ) -> Result<RuleSet, Errors> {
        let store = self.service.store().shared();
        RuleSet::receive(resources, refinements, store, Some(&self.service.rules()))
    }

    /// Reports errors of the files for as long as they have any.
    fn keep(&self, errors: Option<Errors>) {
        if let Some(errors) = errors {
            error!("the refinements still have errors; the old ones remain in force");
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
