//! Calls of the store that wait for a batch.

use std::mem;
use std::sync::{Mutex, PoisonError};

use limiter_core::store::{Facts, JointOp, Log, LogKey, Op, Outcome};
use limiter_core::{Error, ErrorKind, Policy, Timestamp};

/// A loaded log, or the reason why the bytes are not one.
pub(crate) type Held = Result<Log, String>;

/// A failure of a call: of one of its logs, or of all.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) kind: ErrorKind,
    pub(crate) text: String,
    /// The position of the log among those of the call.
    pub(crate) log: Option<usize>,
}

impl Failed {
    pub(crate) fn damaged(log: usize, text: &str) -> Self {
        Self {
            kind: ErrorKind::Corrupt,
            text: text.to_owned(),
            log: Some(log),
        }
    }

    /// Returns the error of a call on these logs.
    pub(crate) fn into_error(self, logs: &[LogKey<'_>]) -> Error {
        let error = Error::new(self.kind, self.text);
        match (self.log, logs) {
            (Some(i), _) if i < logs.len() => error.with_log(logs[i]),
            (_, [log]) => error.with_log(*log),
            _ => error,
        }
    }
}

/// A call as its batch sees it.
pub(crate) trait Call: Send + Sync {
    fn keys(&self) -> &[Vec<u8>];

    /// Changes the logs of its keys, and returns `true` if it did. It runs once for each attempt; the last one counts.
    fn run(&self, logs: &mut [Held], now: Timestamp) -> bool;

    fn fail(&self, kind: ErrorKind, text: &str);
}

/// A call that returns an `R`.
pub(crate) struct Pending<R, F> {
    keys: Vec<Vec<u8>>,
    work: F,
    result: Mutex<Option<Result<R, Failed>>>,
}

impl<R, F> Pending<R, F> {
    pub(crate) fn new(keys: Vec<Vec<u8>>, work: F) -> Self {
        let result = Mutex::new(None);
        Self { keys, work, result }
    }

    fn set(&self, result: Result<R, Failed>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    /// Returns the result, after the batch has ended.
    pub(crate) fn result(&self) -> Result<R, Failed> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().unwrap_or_else(|| {
            Err(Failed {
                kind: ErrorKind::Unavailable,
                text: "the table abandoned the call".to_owned(),
                log: None,
            })
        })
    }
}

impl<R, F> Call for Pending<R, F>
where
    R: Send,
    F: Fn(&mut [Held], Timestamp) -> Result<(R, bool), Failed> + Send + Sync,
{
    fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    fn run(&self, logs: &mut [Held], now: Timestamp) -> bool {
        let (result, changed) = match (self.work)(logs, now) {
            Ok((result, changed)) => (Ok(result), changed),
            Err(failed) => (Err(failed), false),
        };
        self.set(result);
        changed
    }

    fn fail(&self, kind: ErrorKind, text: &str) {
        let text = text.to_owned();
        let log = None;
        self.set(Err(Failed { kind, text, log }));
    }
}

/// An operation that outlives its caller. It has all that [`Log`] reads.
pub(crate) struct OwnedOp {
    policy: Policy,
    limiter_policy: Option<Policy>,
    /// Its policy and its log are placeholders.
    op: Op<'static>,
    is_advisory: bool,
    keeps_charge: bool,
}

const PLACEHOLDER: &Policy = &limiter_core::policy!("1/1s");

impl From<JointOp<'_>> for OwnedOp {
    fn from(joint: JointOp<'_>) -> Self {
        let mut op = Op::new(joint.op.mode, "", PLACEHOLDER).with_cost(joint.op.cost);
        (op.at, op.id) = (joint.op.at, joint.op.id);
        Self {
            policy: joint.op.policy.clone(),
            limiter_policy: joint.op.limiter_policy.cloned(),
            op,
            is_advisory: joint.is_advisory,
            keeps_charge: joint.keeps_charge,
        }
    }
}

impl OwnedOp {
    pub(crate) fn op(&self) -> Op<'_> {
        let mut op: Op<'_> = self.op;
        (op.policy, op.limiter_policy) = (&self.policy, self.limiter_policy.as_ref());
        op
    }

    fn joint(&self) -> JointOp<'_> {
        JointOp {
            op: self.op(),
            is_advisory: self.is_advisory,
            keeps_charge: self.keeps_charge,
        }
    }
}

pub(crate) fn appended(facts: &Facts) -> bool {
    matches!(facts.outcome, Outcome::Appended(_))
}

/// Applies operations as one. Advisory operations whose logs are damaged take no part, by item A7 of the contract.
pub(crate) fn apply_all(
    ops: &[OwnedOp],
    held: &mut [Held],
    now: Timestamp,
) -> Result<(Vec<Result<Facts, Failed>>, bool), Failed> {
    // After an error, the batch goes on with these logs.
    for (i, (held, op)) in held.iter().zip(ops).enumerate() {
        if let Err(text) = held
            && !op.is_advisory
        {
            return Err(Failed::damaged(i, text));
        }
    }
    let (mut logs, mut joint) = (Vec::new(), Vec::new());
    for (held, op) in held.iter_mut().zip(ops) {
        if let Ok(log) = held {
            logs.push(mem::take(log));
            joint.push(op.joint());
        }
    }
    let facts = Log::apply_all(&mut logs, &joint, now);
    let changed = facts.iter().any(appended);
    let mut applied = logs.into_iter().zip(facts);
    let result = held.iter_mut().enumerate().map(|(i, held)| match held {
        Err(text) => Err(Failed::damaged(i, text)),
        Ok(log) => {
            let (after, facts) = applied.next().ok_or_else(|| Failed::damaged(i, "lost"))?;
            *log = after;
            Ok(facts)
        }
    });
    Ok((result.collect(), changed))
}
