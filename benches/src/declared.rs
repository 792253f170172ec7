//! The scenarios and goals, which `benches/scenarios/*.json` declare.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::record::Record;

/// The scenarios and goals of a group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared<S> {
    /// The scenarios, in the order of the tables.
    pub scenarios: Vec<S>,
    /// The goals.
    pub goals: Vec<Goal>,
}

/// A scenario, a contestant and a measure.
type Figure = (String, String, String);

/// The most that a figure, or its ratio to another, or its difference from another, may be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The goal in words.
    pub what: String,
    /// The most that is allowed.
    pub most: f64,
    of: Figure,
    to: Option<Figure>,
    minus: Option<Figure>,
}

impl Goal {
    /// Returns the measured figure, ratio or difference.
    #[must_use]
    pub fn measured(&self, record: &Record) -> Option<f64> {
        let figure = |(scenario, who, measure): &Figure| record.get(scenario, who, measure);
        let mut measured = figure(&self.of)?;
        if let Some(other) = &self.to {
            measured /= figure(other)?;
        }
        if let Some(other) = &self.minus {
            measured -= figure(other)?;
        }
        Some(measured)
    }
}

/// Parses declared scenarios.
///
/// # Panics
/// If the text is not valid.
#[must_use]
pub fn parse<S: DeserializeOwned>(text: &str) -> Declared<S> {
    serde_json::from_str(text).expect("the scenarios are valid")
}
