//! Scripts: named cases that are written as text. `scripts/given_times.txt` describes the language.

use std::collections::HashMap;

use limiter_core::store::{At, Mode};
use limiter_core::{Counting, Policy, Timestamp, Window};

use super::case::{Case, CaseId, CaseLimiter, Step, Verb};
use super::mismatch::Mismatch;
use super::policies::START;
use super::sentence::Sentence;

pub(crate) const GIVEN_TIMES: &str = include_str!("scripts/given_times.txt");
pub(crate) const STORE_CLOCK: &str = include_str!("scripts/store_clock.txt");
pub(crate) const FORGETTING: &str = include_str!("scripts/forgetting.txt");
pub(crate) const FORGETTING_A_MINUTE: &str = include_str!("scripts/forgetting_a_minute.txt");
pub(crate) const TOGETHER: &str = include_str!("scripts/together.txt");
pub(crate) const DROPPED: &str = include_str!("scripts/dropped.txt");
pub(crate) const DROPPED_AT_THE_STORES_CLOCK: &str =
    include_str!("scripts/dropped_at_the_stores_clock.txt");

/// A named case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) case: Case,
    /// The sentences that each step checks.
    pub(crate) citations: Vec<Vec<Sentence>>,
    /// The times that steps at the store's clock give, by step.
    given: HashMap<usize, GivenTime>,
    /// The step whose future is dropped.
    pub(crate) dropped: Option<usize>,
    /// The number of steps that are made before several tasks make the others.
    pub(crate) alone: usize,
    /// How time passes while several tasks make the steps.
    pub(crate) clock: Clock,
}

/// The source of times for concurrent tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Clock {
    #[default]
    StandsStill,
    /// Each call gives a time that is a microsecond later.
    Ticks,
    Store,
}

/// A time that a step gives, in microseconds.
#[derive(Clone, Copy, Debug)]
enum GivenTime {
    At(u64),
    AfterFirst(i64),
}

impl Script {
    /// Returns the same script with the counting mode of each policy inverted.
    pub(crate) fn counting_otherwise(mut self) -> Self {
        for policy in &mut self.case.policies {
            *policy = policy.clone().with_counting(match policy.counting() {
                Counting::Admitted => Counting::Attempts,
                Counting::Attempts => Counting::Admitted,
            });
        }
        self
    }

    /// Returns when a step happens. `first` is the time of the first step.
    pub(crate) fn when(&self, step: usize, first: Option<Timestamp>) -> At {
        let micros = match (self.given.get(&step), first) {
            (Some(GivenTime::At(micros)), _) => *micros,
            (Some(GivenTime::AfterFirst(after)), Some(first)) => {
                first.as_micros().saturating_add_signed(*after)
            }
            _ => return At::StoreClock,
        };
        At::Given(Timestamp::from_micros_saturating(micros))
    }

    /// Makes all steps happen at one given time.
    pub(crate) fn stand_still(&mut self) {
        let steps = 0..self.case.steps.len();
        self.given = steps.map(|step| (step, GivenTime::At(START))).collect();
    }

    /// Returns the mismatch with the script's name. It cites the sentences of the step.
    pub(crate) fn cited(&self, mut mismatch: Mismatch) -> Mismatch {
        for sentence in self.citations.get(mismatch.step).into_iter().flatten() {
            if !mismatch.citations.contains(sentence) {
                mismatch.citations.push(*sentence);
            }
        }
        mismatch.titled(format!("script \"{}\"", self.name))
    }
}

/// Parses all scripts of a text.
///
/// # Errors
/// Returns the part that is not in the language. A test parses every text of this crate.
pub(crate) fn parse(text: &str) -> Result<Vec<Script>, String> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("    "), blocks.last_mut()) {
            (Some(steps), Some((_, all))) => *all += &format!("{steps} "),
            _ if line.trim().is_empty() || line.starts_with('#') => {}
            _ => blocks.push((line, String::new())),
        }
    }
    let script = |(head, steps): &(&str, String)| {
        let mut script = head_of(head).ok_or_else(|| (*head).to_owned())?;
        let mut about = script.citations.remove(0);
        let mut called = HashMap::new();
        for text in repeated(steps).ok_or(head.to_owned())?.split(',') {
            add_step(&mut script, &mut about, &mut called, text.trim())
                .ok_or_else(|| format!("{head}: {text}"))?;
        }
        Ok(script)
    };
    blocks.iter().map(script).collect()
}

fn head_of(head: &str) -> Option<Script> {
    let mut parts = head.split(" | ");
    let mut script = Script {
        name: parts.next()?.to_owned(),
        citations: vec![citations(parts.next()?)?],
        ..Script::default()
    };
    script.case.start = START;
    let limiter = |name| CaseLimiter {
        name,
        policy: Some(name),
    };
    for part in parts {
        match part {
            "two names" => script.case.limiters = vec![limiter(0), limiter(1)],
            "limiter" => script.case.limiters = vec![limiter(0)],
            "store clock" => script.clock = Clock::Store,
            "ticks" => script.clock = Clock::Ticks,
            _ => match part.strip_prefix("start ") {
                Some(start) => script.case.start = start.parse().ok()?,
                None => script.case.policies.push(policy(part)?),
            },
        }
    }
    (!script.case.policies.is_empty()).then_some(script)
}

fn policy(text: &str) -> Option<Policy> {
    let (limits, counting) = match text.strip_suffix(" attempts") {
        Some(limits) => (limits, Counting::Attempts),
        None => (text, Counting::Admitted),
    };
    Some(limits.parse::<Policy>().ok()?.with_counting(counting))
}

/// Parses sentences such as `L9 S4`.
fn citations(text: &str) -> Option<Vec<Sentence>> {
    let all = Sentence::ALL.iter().copied();
    let one = |label| all.clone().find(|sentence| sentence.label() == label);
    text.split_whitespace().map(one).collect()
}

/// Replaces `for VALUES (STEPS)` by the steps, once per value, with the value for `$`.
fn repeated(steps: &str) -> Option<String> {
    let Some((before, rest)) = steps.split_once("for ") else {
        return Some(steps.to_owned());
    };
    let (values, rest) = rest.split_once(" (")?;
    let (body, after) = rest.split_once(')')?;
    let values: Vec<String> = match values.split_once("..") {
        Some((first, last)) => (first.parse().ok()?..=last.parse::<u64>().ok()?)
            .map(|value| value.to_string())
            .collect(),
        None => values.split(' ').map(str::to_owned).collect(),
    };
    let all: Vec<String> = values
        .iter()
        .map(|value| body.replace('$', value))
        .collect();
    Some(format!("{before}{}{}", all.join(", "), repeated(after)?))
}

fn cost(text: &str) -> Option<u64> {
    if text == "max" {
        Some(u64::MAX)
    } else {
        text.parse().ok()
    }
}

/// Parses a step. `called` are the numbers of the steps with a name.
fn add_step(
    script: &mut Script,
    about: &mut Vec<Sentence>,
    called: &mut HashMap<String, usize>,
    mut text: &str,
) -> Option<()> {
    if let Some(rest) = text.strip_prefix('[') {
        let (sentences, rest) = rest.split_once("] ")?;
        (*about, text) = (citations(sentences)?, rest);
    }
    let number = script.case.steps.len();
    let mut words = text.split_whitespace();
    let mut step = Step::new(Verb::Reset, 0);
    match words.next()? {
        "acquire" => step.verb = Verb::Run(Mode::Acquire),
        "record" => step.verb = Verb::Run(Mode::Record),
        "peek" => step.verb = Verb::Run(Mode::Peek),
        "reset" => {}
        "settle" | "refund" => step.verb = Verb::Settle(*called.get(words.next()?)?),
        "renew" => step.verb = Verb::Renew(*called.get(words.next()?)?),
        _ => return None,
    }
    if step.verb != Verb::Reset && !text.starts_with("refund") && !text.starts_with("renew") {
        step.cost = cost(words.next()?)?;
    }
    while let Some(word) = words.next() {
        match word {
            "alone" => script.alone = number + 1,
            "dropped" => script.dropped = Some(number),
            "after" => step.after = words.next()?.parse().ok()?,
            "at" => _ = script.given.insert(number, given_time(words.next()?)?),
            "under" => step.policy = words.next()?.parse().ok()?,
            "key" => step.on.get_or_insert_default().key = words.next()?.parse().ok()?,
            "by" => step.on.get_or_insert_default().limiter = words.next()?.parse().ok()?,
            "called" => _ = called.insert(words.next()?.to_owned(), number),
            "id" => {
                let text = words.next()?;
                step.id = Some(match text.strip_prefix('=') {
                    Some(exact) => CaseId::Exactly(exact.parse().ok()?),
                    None if text == "of" => CaseId::EntryOf(*called.get(words.next()?)?),
                    None => CaseId::Fresh(text.parse().ok()?),
                });
            }
            _ => return None,
        }
    }
    script.case.steps.push(step);
    script.citations.push(about.clone());
    Some(())
}

/// Parses microseconds, or a duration relative to the first step such as `+20ms`, `-1h` or `+0`.
fn given_time(text: &str) -> Option<GivenTime> {
    let Some(relative) = text.strip_prefix(['+', '-']) else {
        return text.parse().ok().map(GivenTime::At);
    };
    let micros = match relative {
        "0" => 0,
        _ => relative.parse::<Window>().ok()?.as_micros() as i64,
    };
    let sign = if text.starts_with('-') { -1 } else { 1 };
    Some(GivenTime::AfterFirst(sign * micros))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::conformance::session::planned;

    #[test]
    fn every_script_is_complete_and_every_sentence_has_one() {
        use Sentence::{C2, E1, E2, L12, L14, T2, T4, T5};
        let texts = [
            GIVEN_TIMES,
            STORE_CLOCK,
            FORGETTING,
            FORGETTING_A_MINUTE,
            TOGETHER,
            DROPPED,
            DROPPED_AT_THE_STORES_CLOCK,
        ];
        let scripts = texts.map(|text| parse(text).unwrap()).concat();
        for script in &scripts {
            for script in [script.clone(), script.clone().counting_otherwise()] {
                planned(&script.case);
            }
            // A skipped settlement would leave the case unchecked.
            let calls = planned(&script.case).calls;
            let steps: HashSet<usize> = calls.iter().map(|planned| planned.step).collect();
            assert_eq!(steps.len(), script.case.steps.len(), "{}", script.name);
        }
        let names: HashSet<&String> = scripts.iter().map(|script| &script.name).collect();
        assert_eq!(names.len(), scripts.len());
        assert!(names.len() > 200, "{}", names.len());

        let cited: HashSet<Sentence> = scripts
            .iter()
            .flat_map(|script| script.citations.concat())
            .collect();
        // Several operations are the subject of `several.rs`.
        let is_elsewhere = |sentence: &Sentence| {
            [T2, T4, T5, L12, L14, E1, E2, C2].contains(sentence)
                || sentence.label().starts_with('A')
        };
        for sentence in Sentence::ALL {
            assert!(
                cited.contains(sentence) || is_elsewhere(sentence),
                "{sentence}"
            );
        }
    }
}
