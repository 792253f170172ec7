//! Scripts: named cases that are written as text. `scripts/given_times.txt` describes the language.

use std::collections::HashMap;

use limiter_core::store::{At, Mode};
use limiter_core::{Counting, Policy, Timestamp, Window};

use super::sentence::Sentence;
use super::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use super::sequence::mismatch::Mismatch;
use super::strategy::START;

pub(crate) const GIVEN_TIMES: &str = include_str!("scripts/given_times.txt");
pub(crate) const STORE_CLOCK: &str = include_str!("scripts/store_clock.txt");
pub(crate) const FORGETTING: &str = include_str!("scripts/forgetting.txt");
pub(crate) const FORGETTING_A_MINUTE: &str = include_str!("scripts/forgetting_a_minute.txt");
pub(crate) const TOGETHER: &str = include_str!("scripts/together.txt");
pub(crate) const DROPPED: &str = include_str!("scripts/dropped.txt");
pub(crate) const DROPPED_AT_THE_STORES_CLOCK: &str =
    include_str!("scripts/dropped_at_the_stores_clock.txt");

/// Two limiters with different names on one key.
const TWO_NAMES: [CaseLimiter; 2] = [
    CaseLimiter {
        name: 0,
        policy: Some(0),
    },
    CaseLimiter {
        name: 1,
        policy: Some(1),
    },
];

/// A named case. Each step lists the sentences of the contract that it checks.
#[derive(Clone, Debug)]
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
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
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
        self.given = (0..self.case.steps.len())
            .map(|step| (step, GivenTime::At(START)))
            .collect();
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
/// If the text is not in the language. A test parses every text of this crate.
pub(crate) fn parse(text: &str) -> Result<Vec<Script>, String> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        match (line.strip_prefix("    "), blocks.last_mut()) {
            (Some(steps), Some((_, all))) => *all += &format!("{steps} "),
            _ => blocks.push((line, String::new())),
        }
    }
    let script = |(head, steps): &(&str, String)| {
        let script = head_of(head).and_then(|script| add_steps(script, &repeated(steps)?));
        script.map_err(|error| format!("{head}: {error}"))
    };
    blocks.iter().map(script).collect()
}

fn head_of(head: &str) -> Result<Script, String> {
    let mut parts = head.split(" | ");
    let (name, about) = (
        parts.next().unwrap_or_default(),
        parts.next().ok_or("expected sentences after the name")?,
    );
    let mut case = Case {
        policies: Vec::new(),
        limiters: vec![CaseLimiter::NONE],
        start: START,
        steps: Vec::new(),
    };
    let mut clock = Clock::StandsStill;
    for part in parts {
        match part.split_once(' ') {
            Some(("start", start)) => case.start = number(start)?,
            Some(("two", "names")) => case.limiters = TWO_NAMES.to_vec(),
            Some(("store", "clock")) => clock = Clock::Store,
            None if part == "ticks" => clock = Clock::Ticks,
            None if part == "limiter" => case.limiters = vec![TWO_NAMES[0]],
            _ => {
                let (limits, counting) = match part.strip_suffix(" attempts") {
                    Some(limits) => (limits, Counting::Attempts),
                    None => (part, Counting::Admitted),
                };
                let policy: Policy = limits.parse().map_err(|error| format!("{error}"))?;
                case.policies.push(policy.with_counting(counting));
            }
        }
    }
    if case.policies.is_empty() {
        return Err("expected a policy".to_owned());
    }
    let citations = vec![citations(about)?];
    Ok(Script {
        name: name.to_owned(),
        case,
        citations,
        given: HashMap::new(),
        dropped: None,
        alone: 0,
        clock,
    })
}

/// Parses sentences such as `L9 S4`.
fn citations(text: &str) -> Result<Vec<Sentence>, String> {
    let one = |label: &str| {
        let sentence = Sentence::ALL
            .iter()
            .copied()
            .find(|sentence| sentence.label() == label);
        sentence.ok_or(format!("unknown sentence {label}"))
    };
    text.split_whitespace().map(one).collect()
}

/// Replaces `for VALUES (STEPS)` by the steps, once per value, with the value for `$`.
fn repeated(steps: &str) -> Result<String, String> {
    let Some((before, rest)) = steps.split_once("for ") else {
        return Ok(steps.to_owned());
    };
    let (values, rest) = rest.split_once(" (").ok_or("expected ( after for")?;
    let (body, after) = rest.split_once(')').ok_or("expected ) after for")?;
    let values: Vec<String> = match values.split_once("..") {
        Some((first, last)) => (number::<u64>(first)?..=number(last)?)
            .map(|value| value.to_string())
            .collect(),
        None => values.split(' ').map(str::to_owned).collect(),
    };
    let all: Vec<String> = values
        .iter()
        .map(|value| body.replace('$', value))
        .collect();
    Ok(format!("{before}{}{}", all.join(", "), repeated(after)?))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("expected a number, found {text:?}"))
}

fn cost(text: &str) -> Result<u64, String> {
    if text == "max" {
        Ok(u64::MAX)
    } else {
        number(text)
    }
}

fn add_steps(mut script: Script, steps: &str) -> Result<Script, String> {
    let mut about = script.citations.remove(0);
    let mut called: HashMap<String, usize> = HashMap::new();
    for text in steps.split(',').map(str::trim) {
        let mut text = text;
        if let Some((sentences, rest)) = text
            .strip_prefix('[')
            .and_then(|text| text.split_once("] "))
        {
            (about, text) = (citations(sentences)?, rest);
        }
        let number_of_step = script.case.steps.len();
        let mut words = text.split_whitespace();
        let mut word = || {
            words
                .next()
                .ok_or(format!("the step {text:?} is incomplete"))
        };
        let step_called = |name: &str| {
            called
                .get(name)
                .copied()
                .ok_or(format!("no step is called {name:?}"))
        };
        let mut operation = match word()? {
            "acquire" => Operation::run(Mode::Acquire, cost(word()?)?),
            "record" => Operation::run(Mode::Record, cost(word()?)?),
            "peek" => Operation::run(Mode::Peek, cost(word()?)?),
            "reset" => Operation::Reset {
                on: Place::default(),
            },
            "refund" => Operation::Settle {
                step: step_called(word()?)?,
                on: None,
                cost: 0,
                policy: 0,
            },
            "settle" => Operation::Settle {
                step: step_called(word()?)?,
                on: None,
                cost: cost(word()?)?,
                policy: 0,
            },
            verb => return Err(format!("unknown operation {verb:?}")),
        };
        let (mut after, mut name) = (0, None);
        while let Ok(change) = word() {
            match (change, &mut operation) {
                ("after", _) => after = number(word()?)?,
                ("called", _) => name = Some(word()?),
                ("alone", _) => script.alone = number_of_step + 1,
                ("dropped", _) => script.dropped = Some(number_of_step),
                ("at", _) => {
                    script.given.insert(number_of_step, given_time(word()?)?);
                }
                ("under", Operation::Run { policy, .. } | Operation::Settle { policy, .. }) => {
                    *policy = number(word()?)?;
                }
                ("id", Operation::Run { id, .. }) => *id = Some(case_id(&mut word, &step_called)?),
                ("key" | "by", Operation::Run { on, .. } | Operation::Reset { on }) => {
                    *(if change == "key" {
                        &mut on.key
                    } else {
                        &mut on.limiter
                    }) = number(word()?)?;
                }
                ("key" | "by", Operation::Settle { on, .. }) => {
                    let on = on.get_or_insert_default();
                    *(if change == "key" {
                        &mut on.key
                    } else {
                        &mut on.limiter
                    }) = number(word()?)?;
                }
                _ => return Err(format!("{text:?} cannot have {change:?}")),
            }
        }
        if let Some(name) = name {
            called.insert(name.to_owned(), number_of_step);
        }
        script.case.steps.push(Step { after, operation });
        script.citations.push(about.clone());
    }
    Ok(script)
}

fn case_id<'a>(
    word: &mut impl FnMut() -> Result<&'a str, String>,
    step_called: &impl Fn(&str) -> Result<usize, String>,
) -> Result<CaseId, String> {
    let text = word()?;
    Ok(match text.strip_prefix('=') {
        Some(exact) => CaseId::Exactly(number(exact)?),
        None if text == "of" => CaseId::EntryOf(step_called(word()?)?),
        None => CaseId::Fresh(number(text)?),
    })
}

/// Parses microseconds, or a duration relative to the first step such as `+20ms`, `-1h` or `+0`.
fn given_time(text: &str) -> Result<GivenTime, String> {
    let relative = |text: &str| match text {
        "0" => Ok(0),
        _ => text
            .parse::<Window>()
            .map(|window| window.as_micros() as i64)
            .map_err(|error| format!("{error}")),
    };
    Ok(match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(after), _) => GivenTime::AfterFirst(relative(after)?),
        (_, Some(before)) => GivenTime::AfterFirst(-relative(before)?),
        _ => GivenTime::At(number(text)?),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::conformance::session::planned;

    #[test]
    fn every_script_is_complete() {
        let mut names = HashSet::new();
        let others = [
            STORE_CLOCK,
            FORGETTING,
            FORGETTING_A_MINUTE,
            TOGETHER,
            DROPPED,
            DROPPED_AT_THE_STORES_CLOCK,
        ];
        let others = others.map(|text| parse(text).unwrap()).concat();
        assert!(
            parse(DROPPED)
                .unwrap()
                .iter()
                .all(|script| script.dropped.is_some())
        );
        for script in parse(GIVEN_TIMES).unwrap().into_iter().chain(others) {
            for (round, script) in [script.clone(), script.clone().counting_otherwise()]
                .into_iter()
                .enumerate()
            {
                let (plan, count) = (planned(&script.case), script.case.steps.len());
                assert!(plan.calls.len() > count, "{}", script.name);
                assert_eq!(script.citations.len(), count);
                // A skipped settlement would leave the case unchecked.
                let steps: HashSet<usize> = plan.calls.iter().map(|planned| planned.step).collect();
                assert!(
                    round > 0 || steps.len() == count,
                    "{} skips a step",
                    script.name
                );
            }
            assert!(
                names.insert(script.name.clone()),
                "two scripts are called {:?}",
                script.name
            );
        }
        assert!(names.len() > 200, "{}", names.len());
    }

    #[test]
    fn every_sentence_about_sequences_has_scripts() {
        use Sentence::{C2, E1, E2, L12, L14, T2, T4, T5};
        let elsewhere = [T2, T4, T5, L12, L14, E1, E2, C2];
        let scripts = [GIVEN_TIMES, FORGETTING, DROPPED]
            .map(|text| parse(text).unwrap())
            .concat();
        let cited: HashSet<Sentence> = scripts
            .iter()
            .flat_map(|script| script.citations.concat())
            .collect();
        // Several operations are the subject of `several.rs`.
        let is_elsewhere =
            |sentence: &Sentence| elsewhere.contains(sentence) || sentence.label().starts_with('A');
        let missing = Sentence::ALL
            .iter()
            .filter(|sentence| !cited.contains(sentence) && !is_elsewhere(sentence));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Sentence>::new());
    }
}
