//! Scripts: named cases that are written as text. `scripts/given_times.txt` describes the language.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use limiter_core::store::{At, Mode};
use limiter_core::{Counting, Policy, Timestamp, Window};

use crate::case::{Case, CaseId, CaseLimiter, Step, Verb};
use crate::policies::{START, with_counting};
use crate::sentence::Sentence;

pub(crate) const GIVEN_TIMES: &str = include_str!("scripts/given_times.txt");
pub(crate) const STORE_CLOCK: &str = include_str!("scripts/store_clock.txt");
pub(crate) const FORGETTING: &str = include_str!("scripts/forgetting.txt");
pub(crate) const FORGETTING_A_MINUTE: &str = include_str!("scripts/forgetting_a_minute.txt");
pub(crate) const TOGETHER: &str = include_str!("scripts/together.txt");
pub(crate) const SEVERAL: &str = include_str!("scripts/several.txt");
pub(crate) const SEVERAL_TOGETHER: &str = include_str!("scripts/several_together.txt");
pub(crate) const DAMAGED: &str = include_str!("scripts/damaged.txt");
pub(crate) const SEVERAL_FORGETTING: &str = include_str!("scripts/several_forgetting.txt");
pub(crate) const DROPPED: &str = include_str!("scripts/dropped.txt");

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
    /// The step whose log becomes unreadable after the steps that are made alone.
    pub(crate) damaged: Option<usize>,
    /// The number of steps that are made before several tasks make the others.
    pub(crate) alone: usize,
    /// How time passes while several tasks make the steps, or in a script with a dropped call.
    pub(crate) clock: Clock,
}

/// The source of times for concurrent tasks, and for a call that is dropped.
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

    /// Gives each step its time.
    pub(crate) fn give_times(&mut self) {
        let times = self.case.times().into_iter().enumerate();
        let given = times.map(|(step, time)| (step, GivenTime::At(time.as_micros())));
        self.given = given.collect();
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

pub(crate) fn head_of(head: &str) -> Option<Script> {
    let mut parts = head.split('|').map(str::trim);
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
            _ => match (part.strip_prefix("start "), part.strip_prefix("limiters ")) {
                (Some(start), _) => script.case.start = start.parse().ok()?,
                (_, Some(limiters)) => script.case.limiters = self::limiters(limiters)?,
                _ => script.case.policies.push(policy(part)?),
            },
        }
    }
    (!script.case.policies.is_empty()).then_some(script)
}

/// Parses limiters, each as the numbers of its name and of its default policy, if it has one: `0 0:1`.
fn limiters(text: &str) -> Option<Vec<CaseLimiter>> {
    let limiter = |text: &str| {
        let (name, policy) = match text.split_once(':') {
            Some((name, policy)) => (name, Some(policy.parse().ok()?)),
            None => (text, None),
        };
        let name = name.parse().ok()?;
        Some(CaseLimiter { name, policy })
    };
    text.split_whitespace().map(limiter).collect()
}

pub(crate) fn policy(text: &str) -> Option<Policy> {
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
pub(crate) fn add_step(
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
    let mut step = Step::new(Verb::Reset, 0);
    if let Some(rest) = text.strip_prefix("and ") {
        (step.joint.with_previous, text) = (true, rest);
    }
    let mut words = text.split_whitespace();
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
            "advisory" => step.joint.is_advisory = true,
            "keeps" => step.joint.keeps_charge = true,
            "alone" => script.alone = number + 1,
            "dropped" => script.dropped = Some(number),
            "damaged" => script.damaged = Some(number),
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

/// Prints the case as a script without a name, which [`FromStr`] reads.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a case |")?;
        for policy in &self.policies {
            write!(f, " | {}", with_counting(policy))?;
        }
        if !self.limiters.is_empty() {
            f.write_str(" | limiters")?;
        }
        for limiter in &self.limiters {
            write!(f, " {}", limiter.name)?;
            if let Some(policy) = limiter.policy {
                write!(f, ":{policy}")?;
            }
        }
        if self.start != START {
            write!(f, " | start {}", self.start)?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            let separator = if number > 0 { "," } else { "" };
            write!(f, "{separator}\n    {step}")?;
            let mut others = self.steps.iter().copied();
            if others.any(|mut step| step.refers_to().is_some_and(|other| *other == number)) {
                write!(f, " called {number}")?;
            }
        }
        Ok(())
    }
}

/// Prints the step as in a script. Steps that it refers to are their numbers.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.joint.with_previous.then(|| "and".to_owned()));
        words.push(match self.verb {
            Verb::Run(mode) => format!("{mode:?}").to_lowercase(),
            Verb::Settle(issuer) => format!("settle {issuer}"),
            Verb::Renew(issuer) => format!("renew {issuer}"),
            Verb::Reset => "reset".to_owned(),
        });
        words.extend(match (self.verb, self.cost) {
            (Verb::Reset | Verb::Renew(_), _) => None,
            (_, u64::MAX) => Some("max".to_owned()),
            (_, cost) => Some(cost.to_string()),
        });
        words.extend((self.after != 0).then(|| format!("after {}", self.after)));
        words.extend((self.policy != 0).then(|| format!("under {}", self.policy)));
        let on = self
            .on
            .map(|on| format!("key {} by {}", on.key, on.limiter));
        words.extend(on);
        words.extend(self.id.map(|id| match id {
            CaseId::Fresh(id) => format!("id {id}"),
            CaseId::Exactly(id) => format!("id ={id}"),
            CaseId::EntryOf(step) => format!("id of {step}"),
        }));
        words.extend(self.joint.is_advisory.then(|| "advisory".to_owned()));
        words.extend(self.joint.keeps_charge.then(|| "keeps".to_owned()));
        f.write_str(&words.join(" "))
    }
}

/// Parses a script.
impl FromStr for Case {
    type Err = String;

    /// # Errors
    /// Returns the part that is not in the language.
    fn from_str(text: &str) -> Result<Self, String> {
        let script = parse(text)?.pop();
        script
            .map(|script| script.case)
            .ok_or_else(|| "there is no script".to_owned())
    }
}
