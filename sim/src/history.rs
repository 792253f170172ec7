//! Histories as data: a setting, and steps that are drawn from tables of weights.

use std::time::Duration;

use fastrand::Rng;

/// A limiter's policy, the policy that some of its operations bring, and what its logs allow.
pub(crate) struct Kind {
    pub(crate) policy: &'static str,
    pub(crate) own: &'static str,
    pub(crate) counts_attempts: bool,
    /// Records and refunds exclude each other: a record displaces older entries, which a refund does not bring back.
    pub(crate) verbs: &'static [Verb],
}

use Verb::{Acquire, All, Burst, Peek, Permit, Record, Reset, Within};

pub(crate) const KINDS: [Kind; 6] = [
    Kind {
        policy: "4/500ms",
        own: "7/400ms",
        counts_attempts: false,
        verbs: &[Acquire, Permit, Within, Peek, Reset, All],
    },
    Kind {
        policy: "3/200ms, 8/1s",
        own: "2/100ms",
        counts_attempts: false,
        verbs: &[Acquire, Permit, Within, Peek, Reset, All],
    },
    Kind {
        policy: "5/300ms",
        own: "5/300ms",
        counts_attempts: true,
        verbs: &[Acquire, Record, Peek, Reset],
    },
    Kind {
        policy: "20/600ms",
        own: "9/600ms",
        counts_attempts: false,
        verbs: &[Acquire, Record, Peek, All],
    },
    Kind {
        policy: "90/400ms+100ms",
        own: "90/500ms",
        counts_attempts: false,
        verbs: &[Acquire, Burst, Burst, Burst, Permit, Reset, All],
    },
    Kind {
        policy: "5/200ms, 12/1s~100ms",
        own: "4/200ms, 12/1s~100ms",
        counts_attempts: false,
        verbs: &[Acquire, Permit, Peek, All],
    },
];

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Acquire,
    /// Many acquires, a millisecond apart.
    Burst,
    /// An acquire whose cost is settled or refunded later.
    Permit,
    /// An acquire that waits.
    Within,
    Record,
    Peek,
    Reset,
    /// One decision over several limiters.
    All,
}

/// What goes wrong, until the end of the fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Connections break: requests and replies are lost or late.
    Loss,
    /// Messages take up to half a second.
    Delay,
    /// The server is killed, and starts with its data.
    Crash,
    /// The server is killed, and starts without the last writes.
    Forget,
    /// A replica with an older copy and a different clock takes over.
    Failover,
    /// The server stops, and continues with the requests that it received.
    Stop,
    /// The server forgets its scripts.
    Flush,
    /// The server's memory is full.
    Memory,
    /// The server is a replica.
    Replica,
    /// The server's clock steps.
    ServerClock,
    /// A process's system clock steps.
    ProcessClock,
    /// A process is killed, and starts again.
    Restart,
}

/// The weights of the faults.
pub(crate) const FAULTS: [(u32, Fault); 12] = [
    (6, Fault::Loss),
    (3, Fault::Delay),
    (2, Fault::Crash),
    (1, Fault::Forget),
    (1, Fault::Failover),
    (2, Fault::Stop),
    (1, Fault::Flush),
    (1, Fault::Memory),
    (1, Fault::Replica),
    (2, Fault::ServerClock),
    (1, Fault::ProcessClock),
    (2, Fault::Restart),
];

/// What decides while the store is down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    Error,
    Open,
    Closed,
    Local,
}

/// What all steps have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) processes: usize,
    /// The indices of the limiters in [`KINDS`].
    pub(crate) limiters: [usize; 2],
    pub(crate) choice: Choice,
    pub(crate) response: Duration,
    pub(crate) retries: u32,
    pub(crate) timeout: Duration,
    pub(crate) threshold: u32,
    pub(crate) cache: usize,
    pub(crate) denial_ttl: Duration,
    /// The speed of the server's clock relative to the processes'.
    pub(crate) speed: f64,
}

/// A call or a fault.
#[derive(Clone, Debug)]
pub struct Step {
    /// In milliseconds.
    pub(crate) at: u64,
    pub(crate) process: usize,
    /// Everything else that is random about it, so that a step does the same when others are left out.
    pub(crate) salt: u64,
    pub(crate) does: Does,
}

#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Of a limiter and a key.
    Call(Verb, usize, u8),
    /// For this many milliseconds.
    Fault(Fault, u64),
}

/// A history that can be played again and again.
#[derive(Clone, Debug)]
pub struct History {
    pub(crate) seed: u64,
    pub(crate) setting: Setting,
    /// The calls and faults.
    pub steps: Vec<Step>,
}

/// How long the steps of a history take, in milliseconds.
const LENGTH: u64 = 6_000;

impl History {
    /// Draws a history from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut pick = |choices: &[u64]| choices[random.usize(..choices.len())];
        let millis = Duration::from_millis;
        let first = pick(&[0, 1, 2, 3, 4, 4, 4, 5]) as usize;
        let setting = Setting {
            processes: pick(&[1, 2, 2, 3, 4]) as usize,
            limiters: [first, pick(&[0, 1, 3, 4, 5]) as usize],
            choice: [
                Choice::Error,
                Choice::Open,
                Choice::Closed,
                Choice::Local,
                Choice::Local,
            ][pick(&[0, 1, 2, 3, 4]) as usize],
            response: millis(pick(&[60, 250])),
            retries: pick(&[0, 1, 1, 2]) as u32,
            timeout: [Duration::MAX, millis(120), millis(300)][pick(&[0, 1, 2]) as usize],
            threshold: pick(&[3, 5, u64::from(u32::MAX)]) as u32,
            cache: pick(&[0, 1, 100, 100]) as usize,
            denial_ttl: millis(pick(&[100, 1_000])),
            // A lease allows for a 64th.
            speed: 1.0
                + [0, 0, 1, -1][pick(&[0, 1, 2, 3]) as usize] as f64 * pick(&[5, 15]) as f64
                    / 1_000.0,
        };
        let mut steps = Vec::new();
        let calls = random.usize(60..160);
        for _ in 0..calls {
            let limiter = random.usize(..2);
            let verbs = KINDS[setting.limiters[limiter]].verbs;
            // Acquires are most frequent.
            let verb = if random.bool() {
                verbs[0]
            } else {
                verbs[random.usize(..verbs.len())]
            };
            let key = u8::from(random.u8(..4) == 0);
            let does = Does::Call(verb, limiter, key);
            steps.push(Step::draw(&mut random, setting.processes, does));
        }
        let total: u32 = FAULTS.iter().map(|(weight, _)| weight).sum();
        for _ in 0..random.usize(..6) {
            let mut drawn = random.u32(..total);
            let is_it = |(weight, _): &&(u32, Fault)| {
                let is_it = drawn < *weight;
                drawn = drawn.wrapping_sub(*weight);
                is_it
            };
            let fault = FAULTS
                .iter()
                .find(is_it)
                .map_or(Fault::Loss, |(_, fault)| *fault);
            let does = Does::Fault(fault, random.u64(20..900));
            steps.push(Step::draw(&mut random, setting.processes, does));
        }
        Self {
            seed,
            setting,
            steps,
        }
    }

    /// Changes the speed of the server's clock, relative to the processes'.
    #[must_use]
    pub fn with_server_speed(mut self, speed: f64) -> Self {
        self.setting.speed = speed;
        self
    }

    /// Leaves out steps while what is left still breaks the same rule.
    #[must_use]
    pub fn shrink(mut self) -> Self {
        let rule = |history: &Self| {
            let broken = history.play(false, None).broken;
            let text = broken.first().map(String::as_str).unwrap_or_default();
            text.replace(|c: char| c.is_ascii_digit(), "")
        };
        let expected = rule(&self);
        let mut size = self.steps.len() / 2;
        while size > 0 {
            let mut start = 0;
            while start < self.steps.len() {
                let mut shorter = self.clone();
                shorter
                    .steps
                    .drain(start..(start + size).min(self.steps.len()));
                if rule(&shorter) == expected {
                    self = shorter;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        self
    }
}

impl Step {
    fn draw(random: &mut Rng, processes: usize, does: Does) -> Self {
        Self {
            at: random.u64(..LENGTH),
            process: random.usize(..processes),
            salt: random.u64(..),
            does,
        }
    }

    /// Returns the random numbers of a part of the step.
    pub(crate) fn random(&self, part: u64) -> Rng {
        Rng::with_seed(self.salt ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loss => "broken connections",
            Self::Delay => "slow network",
            Self::Crash => "crash",
            Self::Forget => "crash that loses writes",
            Self::Failover => "failover to an older copy",
            Self::Stop => "stopped server",
            Self::Flush => "scripts flushed",
            Self::Memory => "OOM",
            Self::Replica => "READONLY",
            Self::ServerClock => "server's clock steps",
            Self::ProcessClock => "process's clock steps",
            Self::Restart => "process restarts",
        }
    }
}
