//! Histories as data: a setting, and steps that are drawn from tables of weights.

use std::time::Duration;

use fastrand::Rng;

/// A limiter's policy, the policy that some of its operations bring, and its calls, of which the first is the most frequent:
///
/// `a`: acquire, `b`: a burst of them, a millisecond apart, and some others between them, `w`: acquire within a time, `p`: acquire with a permit and settle later,
/// `s`: hold a slot, `r`: record, `k`: peek, `x`: reset, `l`: one decision over both limiters.
///
/// Records and refunds exclude each other: a record displaces older entries, which a refund does not bring back.
pub(crate) const KINDS: [[&str; 3]; 8] = [
    ["4/500ms", "7/400ms", "apbwkxl"],
    ["3/200ms, 8/1s", "2/100ms", "apwkxl"],
    ["5/262144us attempts", "5/262144us attempts", "arkx"],
    ["20/600ms", "9/600ms", "arkl"],
    ["90/400ms+100ms", "90/500ms", "abbbpxl"],
    ["5/200ms, 12/1s~100ms", "4/200ms, 12/1s~100ms", "apkl"],
    ["2/4s, 30/16s", "3/6s, 30/20s", "s"],
    ["30/8s", "30/8s", "apbwl"],
];

/// The kind whose operations hold slots.
pub(crate) const SLOTS: usize = 6;

/// What goes wrong, until the end of the fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Messages are lost or late.
    Loss,
    /// The network is slow.
    Delay,
    /// A process is cut off.
    CutOff,
    /// A process stands still.
    Pause,
    /// The server crashes.
    Crash,
    /// A crash loses the last writes.
    Forget,
    /// An older copy takes over.
    Failover,
    /// The server stands still.
    Stop,
    /// Scripts are flushed.
    Flush,
    /// Memory is full.
    Memory,
    /// The server's clock steps.
    ServerClock,
    /// A process's clock steps.
    ProcessClock,
    /// A process restarts.
    Restart,
    /// Commands are refused.
    Refused,
    /// A log is damaged.
    Damaged,
    /// A policy changes.
    Reload,
}

/// The weights of the faults.
pub(crate) const FAULTS: [(u32, Fault); 16] = [
    (6, Fault::Loss),
    (3, Fault::Delay),
    (3, Fault::CutOff),
    (2, Fault::Pause),
    (2, Fault::Crash),
    (1, Fault::Forget),
    (1, Fault::Failover),
    (2, Fault::Stop),
    (1, Fault::Flush),
    (1, Fault::Memory),
    (2, Fault::ServerClock),
    (1, Fault::ProcessClock),
    (2, Fault::Restart),
    (2, Fault::Refused),
    (2, Fault::Damaged),
    (2, Fault::Reload),
];

/// What decides while the store is down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    Error,
    Open,
    Closed,
    Local,
}

/// What the processes share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Server {
    /// A Redis, with the shipped scripts.
    Redis,
    /// A table, over which each process uses limiter-log.
    Table,
    /// A limiter-server with a memory store, whose logs outlive its restarts in a file.
    Memory,
}

/// What all steps have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) processes: usize,
    /// The indices of the limiters in [`KINDS`].
    pub(crate) limiters: [usize; 2],
    /// What the maxima of their limits are divided by.
    pub(crate) divisor: u64,
    pub(crate) choice: Choice,
    pub(crate) response: Duration,
    pub(crate) retries: u32,
    pub(crate) timeout: Duration,
    pub(crate) threshold: u32,
    pub(crate) cache: usize,
    pub(crate) denial_ttl: Duration,
    pub(crate) server: Server,
    /// The speed of the server's clock relative to the processes'.
    pub(crate) speed: f64,
}

impl Setting {
    fn slower(&self) -> u64 {
        if self.limiters[0] == SLOTS { SLOWER } else { 1 }
    }
}

/// A call or a fault.
#[derive(Clone, Debug)]
pub(crate) struct Step {
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
    Call(u8, usize, u8),
    /// For this many milliseconds.
    Fault(Fault, u64),
}

/// A history that can be played again and again.
#[derive(Clone, Debug)]
pub struct History {
    pub(crate) seed: u64,
    pub(crate) setting: Setting,
    pub(crate) steps: Vec<Step>,
}

/// How long the steps of a history take, in milliseconds, and how many times longer all takes if the first limiter has slots.
const LENGTH: u64 = 6_000;
const SLOWER: u64 = 8;

impl History {
    /// Draws a history from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut pick = |choices: &[u64]| choices[random.usize(..choices.len())];
        let millis = Duration::from_millis;
        let choices = [Choice::Error, Choice::Open, Choice::Closed, Choice::Local];
        let setting = Setting {
            processes: pick(&[1, 2, 2, 3, 4]) as usize,
            limiters: [
                pick(&[0, 1, 2, 3, 4, 4, 4, 5, 6, 6, 7]) as usize,
                pick(&[0, 1, 3, 4, 5, 7]) as usize,
            ],
            divisor: 1,
            choice: choices[pick(&[0, 1, 2, 3, 3]) as usize],
            response: millis(pick(&[60, 250])),
            retries: pick(&[0, 1, 1, 2]) as u32,
            timeout: millis(pick(&[120, 300, u64::MAX])),
            threshold: pick(&[3, 5, u64::from(u32::MAX)]) as u32,
            cache: pick(&[0, 1, 100, 100]) as usize,
            denial_ttl: millis(pick(&[100, 1_000])),
            server: Server::Redis,
            // Leases and slots allow for a 64th.
            speed: pick(&[987, 995, 1_000, 1_000, 1_005, 1_013]) as f64 / 1_000.0,
        };
        let mut steps = Vec::new();
        for _ in 0..random.usize(60..160) {
            let limiter = random.usize(..2);
            let verbs = KINDS[setting.limiters[limiter]][2].as_bytes();
            let verb = if random.bool() {
                verbs[0]
            } else {
                verbs[random.usize(..verbs.len())]
            };
            let key = u8::from(random.u8(..4) == 0);
            let count = if verb == b'b' { random.u64(4..30) } else { 1 };
            let step = Step::draw(&mut random, &setting, Does::Call(verb, limiter, key));
            for part in 0..count {
                let mut step = step.clone();
                step.at += part;
                step.salt ^= part;
                if verb == b'b' {
                    let is_other = random.u8(..8) == 0;
                    let verb = if is_other {
                        random.choice(verbs.iter())
                    } else {
                        None
                    };
                    let verb = verb.filter(|verb| **verb != b'b').unwrap_or(&b'a');
                    step.does = Does::Call(*verb, limiter, key);
                }
                steps.push(step);
            }
        }
        let total: u32 = FAULTS.iter().map(|(weight, _)| weight).sum();
        for _ in 0..random.usize(..6) * (1 + setting.slower() as usize / 2) {
            let mut drawn = random.u32(..total);
            let mut faults = FAULTS.iter();
            let fault = faults.find_map(|(weight, fault)| {
                let is_it = drawn < *weight;
                drawn = drawn.wrapping_sub(*weight);
                is_it.then_some(*fault)
            });
            let length = random.u64(20..900) * setting.slower();
            let does = Does::Fault(fault.unwrap_or(Fault::Loss), length);
            steps.push(Step::draw(&mut random, &setting, does));
        }
        Self {
            seed,
            setting,
            steps,
        }
    }

    /// Replaces the server.
    #[must_use]
    pub fn over(mut self, server: Server) -> Self {
        self.setting.server = server;
        self
    }

    /// Makes the server's clock faster by this factor.
    #[must_use]
    pub fn with_server_speed(mut self, factor: f64) -> Self {
        self.setting.speed *= factor;
        self
    }

    /// Leaves out steps and lowers maxima while what is left still breaks the same rule.
    #[must_use]
    pub fn shrink(mut self) -> Self {
        let rule = |history: &Self| {
            let broken = history.play(false, None).broken;
            let text = broken.first().map(String::as_str).unwrap_or_default();
            let rule = text.split(['(', '[', '{']).next().unwrap_or_default();
            rule.replace(|c: char| c.is_ascii_digit(), "")
        };
        let expected = rule(&self);
        loop {
            self.leave_out(|history| rule(history) == expected);
            let mut lower = self.clone();
            lower.setting.divisor *= 2;
            if lower.setting.divisor > 64 || rule(&lower) != expected {
                return self;
            }
            self = lower;
        }
    }

    /// Leaves out steps that it does not need.
    fn leave_out(&mut self, is_enough: impl Fn(&Self) -> bool) {
        let mut size = self.steps.len() / 2;
        while size > 0 {
            let before = self.steps.len();
            let mut start = 0;
            while start < self.steps.len() {
                let mut shorter = self.clone();
                let end = (start + size).min(self.steps.len());
                shorter.steps.drain(start..end);
                if is_enough(&shorter) {
                    *self = shorter;
                } else {
                    start += size;
                }
            }
            if size > 1 || self.steps.len() == before {
                size /= 2;
            }
        }
    }

    /// Returns the number of its steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps.len()
    }
}

impl Step {
    fn draw(random: &mut Rng, setting: &Setting, does: Does) -> Self {
        let at = random.u64(..LENGTH * setting.slower());
        let process = random.usize(..setting.processes);
        Self {
            at,
            process,
            salt: random.u64(..),
            does,
        }
    }

    /// Returns the random numbers of a part of the step.
    pub(crate) fn random(&self, part: u64) -> Rng {
        Rng::with_seed(self.salt ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
