//! `limiter-server check`: the rules of a configuration as a table, or its errors.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use limiter_core::{Counting, Limiter, Policy, SharedStore};
use limiter_memory::MemoryStore;

use crate::rules::{Rule, RuleSet};

/// Longer texts stand out of their columns.
const MAX_WIDTH: usize = 80;
const HEADINGS: [&str; 4] = ["domain", "rule", "limit", "position"];

/// Prints the rules of `path` to `out`, as refinements if `refines`, and warnings to `errors`. Returns `true` if there are no errors. Otherwise prints only them, to
/// `errors`.
///
/// # Errors
/// If a table or a warning cannot be printed.
pub fn check(
    path: &Path,
    refines: bool,
    out: &mut impl Write,
    errors: &mut impl Write,
) -> io::Result<bool> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let read = match refines {
        true => RuleSet::read_refinements(path, &store),
        false => RuleSet::read(path, &store, None),
    };
    let rules = match read {
        Ok(rules) => rules,
        Err(found) => {
            // The result matters even if nobody reads it.
            let _ = writeln!(errors, "{found}");
            return Ok(false);
        }
    };
    if refines {
        let text = "these limits replace those of the rules with their domain and path that arrive by xDS. Without its rule, a limit has no effect";
        writeln!(errors, "note: {text}")?;
    }
    for warning in rules.warnings() {
        writeln!(errors, "warning: {warning}")?;
    }
    let rows: Vec<[String; 4]> = [HEADINGS.map(str::to_owned)]
        .into_iter()
        .chain(rules.iter().map(|rule| row(rule)))
        .collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
            .min(MAX_WIDTH)
    };
    let [domain_width, rule_width, limit_width] = [0, 1, 2].map(width);
    for [domain, rule, limit, position] in &rows {
        writeln!(
            out,
            "{domain:<domain_width$}  {rule:<rule_width$}  {limit:<limit_width$}  {position}"
        )?;
    }
    Ok(true)
}

fn row(rule: &Rule) -> [String; 4] {
    let policy = rule.limiter().map(Limiter::policy);
    let mut limit = policy.map_or_else(|| rule.effect.name().to_owned(), Policy::to_string);
    let attempts = policy.is_some_and(|policy| policy.counting() == Counting::Attempts);
    let notes = [
        (attempts, ", counting attempts"),
        (rule.shadow, ", shadow mode"),
        (rule.quota, ", quota mode"),
    ];
    for (_, note) in notes.iter().filter(|(set, _)| *set) {
        limit.push_str(note);
    }
    let [domain, path] = rule.on_a_line();
    [domain, path, limit, rule.place()]
}
