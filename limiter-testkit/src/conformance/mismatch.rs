//! Wrong results, with every call up to them.

use std::fmt::{self, Debug, Write};

use limiter_core::{Counting, MAX_COST, Timestamp};

use super::case::Verb;
use super::model::{Call, Model};
use super::result::CallResult;
use super::sentence::Sentence::{self, E1, E2};

/// A wrong result from a store, or another failed check. [`Display`](fmt::Display) prints every call up to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The name of the failing case. Empty for a case without a name.
    pub(crate) title: String,
    /// The number of the wrong call.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the case checks.
    pub(crate) citations: Vec<Sentence>,
    pub(crate) text: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for citation in &self.citations {
            writeln!(f, "{citation}")?;
        }
        let text = self.text.trim_end();
        f.write_str(&text.replace(&MAX_COST.to_string(), "2^52"))
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns a failed check of these sentences, without a call.
    pub(crate) fn new(
        title: impl Into<String>,
        citations: &[Sentence],
        text: impl Into<String>,
    ) -> Self {
        let (title, text) = (title.into(), text.into());
        Self {
            title,
            call: 0,
            step: 0,
            citations: citations.to_vec(),
            text,
        }
    }

    /// Returns the mismatch of the model's last call, with all calls and `text`.
    pub(crate) fn at_last(model: &Model, citations: &[Sentence], text: &str) -> Self {
        Self {
            call: model.calls.len().saturating_sub(1),
            step: model.last_step(),
            ..Self::new("", citations, calls(model) + text)
        }
    }

    /// Returns the mismatch of a wrong result of the model's last call.
    pub(crate) fn of(model: &Model, got: &CallResult) -> Self {
        let Some(expected) = model.calls.last().map(|last| last.expected.comparable(got)) else {
            return Self::new("", &[], "there is no call");
        };
        let citations: &[Sentence] = match (&expected, got) {
            (CallResult::Failed(..), _) => &[E2],
            (_, CallResult::Failed(..)) => &[E1],
            _ => &[],
        };
        Self::at_last(model, citations, &columns(model.start, &expected, got))
    }

    pub(crate) fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// Adds a circumstance to the title. The mismatch then cites these sentences first.
    pub(crate) fn under(mut self, circumstance: &str, citations: &[Sentence]) -> Self {
        self.title += circumstance;
        self.citations.splice(0..0, citations.iter().copied());
        self
    }
}

/// Returns a time as microseconds after (or before) `start`.
fn since(start: Timestamp, at: Timestamp) -> String {
    match at.as_micros().checked_sub(start.as_micros()) {
        Some(later) => format!("+{later}"),
        None => format!("-{}", start.micros_since(at)),
    }
}

/// Describes a call in one line.
pub(crate) fn describe(model: &Model, call: &Call) -> String {
    let (step, log) = (call.step, call.log);
    let mut text = match step.verb {
        Verb::Run(mode) => format!("{mode:?} {}", step.cost).to_lowercase(),
        Verb::Settle(other) if step.cost == 0 => format!("refund the entry of step {other}"),
        Verb::Settle(other) => format!("settle the entry of step {other} to {}", step.cost),
        Verb::Renew(other) => format!("renew the entry of step {other}"),
        Verb::Reset => "reset".to_owned(),
    };
    if model.logs.len() > 1 {
        text += &format!(" on key {} of limiter {}", log.key, log.name);
    }
    if let Some(id) = step.id {
        text += &format!(" with id {id:?}");
    }
    if step.verb == Verb::Reset {
        return text;
    }
    let policy = |number: usize| match &model.policies[number] {
        _ if number + 1 == model.policies.len() => "everything".to_owned(),
        policy if policy.counting() == Counting::Attempts => format!("{policy} counting attempts"),
        policy => policy.to_string(),
    };
    text += &format!(" under {}", policy(call.policy));
    match call.limiter_policy {
        Some(default) if default != call.policy => {
            text + &format!(" (the limiter's policy is {})", policy(default))
        }
        _ => text,
    }
}

/// The maximum number of calls printed before the wrong one.
const MAX_CALLS_SHOWN: usize = 60;

/// Prints the calls with their expected results. The last line starts with `>`.
fn calls(model: &Model) -> String {
    let mut text = format!("times in \u{b5}s since {}\n", model.start.as_micros());
    let (last, skipped) = (
        model.calls.len().saturating_sub(1),
        model.calls.len().saturating_sub(MAX_CALLS_SHOWN + 1),
    );
    if skipped > 0 {
        _ = writeln!(text, "  ... {skipped} calls");
    }
    for (number, planned) in model.calls.iter().enumerate().skip(skipped) {
        let (mark, at) = (
            if number == last { '>' } else { ' ' },
            since(model.start, planned.call.time),
        );
        let call = describe(model, &planned.call);
        let (step, expected) = (planned.step, &planned.expected);
        _ = writeln!(text, "{mark} {step:>3}. {at:>6}  {call}: {expected}");
    }
    text
}

/// Prints two values side by side, one line per field, with times relative to `start`. Marks the fields that differ.
pub(crate) fn columns<T: Debug>(start: Timestamp, expected: &T, got: &T) -> String {
    let fields = |value: &T| -> Vec<String> {
        let text = format!("{value:?}");
        let shown = |field: &str| {
            let mut field = field.rsplit("{ ").next().unwrap_or(field).to_owned();
            for (name, mark) in [
                ("Timestamp(", "@"),
                ("Some(", ""),
                ("Limit(", ""),
                ("Window(", ""),
            ] {
                field = field.replace(name, mark);
            }
            field.retain(|c| !matches!(c, '(' | ')' | '[' | ']' | '{' | '}'));
            match field.trim().split_once('@') {
                Some((before, micros)) => {
                    let at = micros.parse().map(Timestamp::from_micros_saturating);
                    before.to_owned()
                        + &at.map_or_else(|_| micros.to_owned(), |at| since(start, at))
                }
                None => field.trim().to_owned(),
            }
        };
        text.split(", ").map(shown).collect()
    };
    let (expected, got) = (fields(expected), fields(got));
    let width = expected
        .iter()
        .map(|field| field.chars().count())
        .max()
        .unwrap_or(0)
        .max("expected".len());
    let mut text = format!("  {:width$}  got\n", "expected");
    for number in 0..expected.len().max(got.len()) {
        let [left, right] =
            [&expected, &got].map(|fields| fields.get(number).map_or("", String::as_str));
        let mark = if left == right { "" } else { "  <--" };
        _ = writeln!(text, "  {left:width$}  {right}{mark}");
    }
    text
}
