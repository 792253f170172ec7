//! Wrong results, with every call up to them.

use std::fmt::{self, Debug, Write};

use limiter_core::{ErrorKind, MAX_COST};

use super::call::Call;
use super::model::{Model, Wrong};
use super::result::CallResult;
use crate::case::{Step, Verb};
use crate::policies::with_counting;
use crate::script::Script;
use crate::sentence::Sentence::{
    self, A4, A5, A6, E1, E2, E3, L2, L3, L4, L9, L11, L15, S4, S7, S8, S9, T3,
};

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
    /// The sentences that the result is likely to break, for a case that checks no particular one.
    likely: Vec<Sentence>,
    pub(crate) text: String,
    /// Whether the case is as small as shrinking made it.
    pub(crate) is_shrunk: bool,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for citation in self.cited() {
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
        let title = title.into();
        let text = text.into();
        Self {
            title,
            call: 0,
            step: 0,
            citations: citations.to_vec(),
            likely: Vec::new(),
            text,
            is_shrunk: false,
        }
    }

    /// Returns the sentences to cite.
    pub(crate) fn cited(&self) -> &[Sentence] {
        if self.citations.is_empty() {
            &self.likely
        } else {
            &self.citations
        }
    }

    /// Returns the mismatch of the model's last call, with all calls and `text`.
    pub(crate) fn at_last(model: &Model, citations: &[Sentence], text: &str) -> Self {
        Self::at(model, model.calls.len().saturating_sub(1), citations, text)
    }

    /// Returns the mismatch of a call, with all calls and `text`.
    fn at(model: &Model, number: usize, citations: &[Sentence], text: &str) -> Self {
        Self {
            call: number,
            step: model.calls.get(number).map_or(0, |planned| planned.step),
            ..Self::new("", citations, calls(model, number) + text)
        }
    }

    /// Returns the mismatch of a wrong result.
    pub(crate) fn of(model: &Model, (number, got): &Wrong) -> Self {
        let Some(planned) = model.calls.get(*number) else {
            return Self::new("", &[], "there is no call");
        };
        let others = [number.wrapping_sub(1), number + 1];
        let others = others.iter().filter_map(|other| model.calls.get(*other));
        let is_joint = planned.call.step.joint.with_previous
            || others
                .clone()
                .any(|other| other.step > planned.step && other.call.step.joint.with_previous);
        let verb = planned.call.step.verb;
        let expected = planned.expected.comparable(got, is_joint.then_some(verb));
        let citations: &[Sentence] = match (&expected, got) {
            (CallResult::Failed(failed), _) if failed.kind == ErrorKind::Corrupt => &[E3],
            (CallResult::Failed(..), _) => &[E2],
            (_, CallResult::Failed(..)) => &[E1],
            _ => &[],
        };
        let is_error = [&expected, got].map(|result| matches!(result, CallResult::Failed(_)));
        let text = match is_error {
            [false, false] => columns(&expected, got),
            // What is expected has the text of what is not.
            _ => format!("  expected: {}\n  got: {got}\n", planned.expected),
        };
        Self {
            likely: likely(&planned.call, &expected, got, is_joint),
            ..Self::at(model, *number, citations, &text)
        }
    }

    pub(crate) fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// Adds the method that decided, if it is not the usual one.
    pub(crate) fn decided_by(mut self, method: Option<&str>) -> Self {
        if let Some(method) = method {
            self.text = format!("{}\n  decided by {method}", self.text.trim_end());
        }
        self
    }

    /// Adds a circumstance to the title. The mismatch then cites these sentences first.
    pub(crate) fn under(mut self, circumstance: &str, citations: &[Sentence]) -> Self {
        self.title += circumstance;
        self.citations.splice(0..0, citations.iter().copied());
        self
    }
}

impl Script {
    /// Returns the mismatch with the script's name. It cites the sentences of the step first.
    pub(crate) fn cited(&self, mut mismatch: Mismatch) -> Mismatch {
        let mut own = self
            .citations
            .get(mismatch.step)
            .cloned()
            .unwrap_or_default();
        mismatch
            .citations
            .retain(|sentence| !own.contains(sentence));
        own.append(&mut mismatch.citations);
        mismatch.citations = own;
        mismatch.titled(format!("script \"{}\"", self.name))
    }
}

/// Returns the sentences that a wrong result is likely to break, by the first value that differs.
fn likely(call: &Call, expected: &CallResult, got: &CallResult, is_joint: bool) -> Vec<Sentence> {
    if is_joint {
        return vec![A4, A5, A6];
    }
    let (expected, got) = match (expected, got) {
        (CallResult::Decided(expected), CallResult::Decided(got)) => (expected, got),
        (CallResult::Settled(expected), CallResult::Settled(got)) => {
            return vec![match call.step.verb {
                Verb::Renew(_) => S9,
                _ if expected.applied != got.applied => S4,
                _ => S7,
            }];
        }
        (CallResult::Reset { .. }, _) => return vec![S8],
        _ => return Vec::new(),
    };
    let ours = &expected.values;
    let theirs = &got.values;
    if ours.status.at() != theirs.status.at() || expected.clock != got.clock {
        vec![T3]
    } else if ours.appended != theirs.appended || expected.repeats != got.repeats {
        vec![if call.step.id.is_some() { L9 } else { L4 }]
    } else if ours.fits != theirs.fits {
        vec![L2, L3]
    } else if ours.receipt != theirs.receipt {
        vec![L15]
    } else {
        vec![L2, L11]
    }
}

/// Describes a call in one line, as a step of a script.
pub(crate) fn describe(model: &Model, call: &Call) -> String {
    let step = Step {
        after: 0,
        on: None,
        policy: call.policy as u8,
        ..call.step
    };
    let mut text = step.to_string();
    if model.logs.len() > 1 {
        text += &format!(" on key {} of name {}", call.log.key, call.log.name);
    }
    match call.limiter_policy {
        Some(default) if default != call.policy => {
            text + &format!(" through a limiter of {default}")
        }
        _ => text,
    }
}

/// The maximum number of calls printed before the wrong one.
const MAX_CALLS_SHOWN: usize = 60;

/// Prints the calls with their expected results. The line of the wrong call starts with `>`.
fn calls(model: &Model, wrong: usize) -> String {
    let start = model.start.as_micros();
    let policies: Vec<String> = model.policies.iter().map(with_counting).collect();
    let mut text = format!(
        "times in \u{b5}s since {start}; policies: {}\n",
        policies.join(" | ")
    );
    let skipped = model.calls.len().saturating_sub(MAX_CALLS_SHOWN + 1);
    if skipped > 0 {
        _ = writeln!(text, "  ... {skipped} calls");
    }
    for (number, planned) in model.calls.iter().enumerate().skip(skipped) {
        let mark = if number == wrong { '>' } else { ' ' };
        let at = planned.call.time.as_micros() as i64 - start as i64;
        let call = describe(model, &planned.call);
        let step = planned.step;
        let expected = &planned.expected;
        _ = writeln!(text, "{mark} {step:>3}. {at:>+6}  {call}: {expected}");
    }
    text
}

/// Prints two values side by side, one line per field. Marks the fields that differ.
pub(crate) fn columns<T: Debug>(expected: &T, got: &T) -> String {
    let fields = |value: &T| -> Vec<String> {
        let text = format!("{value:?}").replace("Some(", "");
        // A part without a name belongs to the field before.
        let mut parts: Vec<String> = Vec::new();
        for part in text.split(", ") {
            match parts.last_mut() {
                Some(last) if !part.contains(": ") => last.extend([", ", part]),
                _ => parts.push(part.to_owned()),
            }
        }
        let fields = parts.iter().map(|field| {
            // Names of types and brackets say nothing.
            let field = field.rsplit(['{', '[']).next().unwrap_or(field);
            let (name, value) = field.split_once(": ").unwrap_or(("", field));
            let value = value.trim_end_matches(['}', ')', ']', ' ']);
            let value = value.rsplit('(').next().unwrap_or(value);
            format!("{}: {value}", name.trim())
        });
        fields.collect()
    };
    let [expected, got] = [expected, got].map(fields);
    let widths = expected.iter().map(|field| field.chars().count());
    let width = widths.max().unwrap_or(0).max("expected".len());
    let mut text = format!("  {:width$}  got\n", "expected");
    for number in 0..expected.len().max(got.len()) {
        let [left, right] =
            [&expected, &got].map(|fields| fields.get(number).map_or("", String::as_str));
        let mark = if left == right { "" } else { "  <--" };
        _ = writeln!(text, "  {left:width$}  {right}{mark}");
    }
    text
}
