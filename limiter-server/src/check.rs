//! `limiter-server check`: the rules of a configuration as a table, or its errors.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use limiter_core::Counting;
use limiter_memory::MemoryStore;

use crate::config::Config;
use crate::rules::{Effect, Rule, Rules};

const HEADINGS: [&str; 4] = ["domain", "rule", "limit", "place"];

/// Prints the rules of `path` to `out`. Returns whether there are no errors; prints them to `errors` otherwise.
///
/// # Errors
/// If something cannot be printed.
pub fn check(path: &Path, out: &mut impl Write, errors: &mut impl Write) -> io::Result<bool> {
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(found) => {
            writeln!(errors, "{found}")?;
            return Ok(false);
        }
    };
    let rules = Rules::new(&config, &(Arc::new(MemoryStore::new()) as _), None);
    let rows: Vec<[String; 4]> =
        [HEADINGS.map(str::to_owned)].into_iter().chain(rules.iter().map(|rule| row(rule))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [domain_width, rule_width, limit_width] = [0, 1, 2].map(width);
    for [domain, rule, limit, place] in &rows {
        writeln!(out, "{domain:<domain_width$}  {rule:<rule_width$}  {limit:<limit_width$}  {place}")?;
    }
    Ok(true)
}

fn row(rule: &Rule) -> [String; 4] {
    let mut limit = rule.effect.to_string();
    if let Effect::Limit(limiter) = &rule.effect
        && limiter.policy().counting() == Counting::Attempts
    {
        limit.push_str(", counting attempts");
    }
    for (set, note) in [(rule.shadow, ", shadow mode"), (rule.quota, ", quota mode")] {
        limit.push_str(if set { note } else { "" });
    }
    [rule.domain.clone(), rule.path.clone(), limit, rule.place.to_string()]
}
