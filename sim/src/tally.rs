//! What runs did, counted.

use std::collections::BTreeMap;
use std::fmt;

/// What runs did. Printed as a table in Markdown, which depends on the histories alone.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How often something was done, a fault began, or an exception of the guarantee applied.
    counts: BTreeMap<(Counted, &'static str), u64>,
    /// The fullest window of the server, relative to its maximum.
    pub(crate) worst: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted {
    Done,
    Fault,
    Exception,
}

impl Tally {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            *self.counts.entry(*name).or_default() += count;
        }
        self.worst = self.worst.max(other.worst);
    }

    pub(crate) fn count(&mut self, what: Counted, name: &'static str) {
        *self.counts.entry((what, name)).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | |\n|---|---:|")?;
        for ((what, name), count) in &self.counts {
            let kind = match what {
                Counted::Exception => "exception: ",
                _ => "",
            };
            writeln!(f, "| {kind}{name} | {count} |")?;
        }
        let name = "the fullest window, of its maximum";
        writeln!(f, "| {name} | {:.3} |", self.worst)
    }
}
