//! Calls of the store that wait in the queue.

use std::mem;

use futures_channel::oneshot::{Receiver, Sender, channel};
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

    /// The worker was dropped, as when its runtime ends.
    pub(crate) fn abandoned() -> Self {
        let error = Error::new(
            ErrorKind::Unavailable,
            "the worker of the table was dropped or panicked: Table::spawn must run it to its end",
        );
        Self::from(&error)
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

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            text: error.to_string(),
            log: None,
        }
    }
}

/// A call as the queue sees it.
pub(crate) trait Call: Send {
    fn keys(&self) -> &[Vec<u8>];

    /// Returns `false` if the caller is gone.
    fn is_wanted(&self) -> bool;

    /// Changes the logs of its keys, and returns for each whether the result depends on it; empty if none changed. It runs once for
    /// each attempt; the last one counts.
    fn run(&mut self, logs: &mut [Held], now: Timestamp) -> Vec<bool>;

    /// Sends the result to the caller.
    fn finish(self: Box<Self>, error: Option<&Error>);
}

/// A call that returns an `R`.
pub(crate) struct Pending<R, F> {
    keys: Vec<Vec<u8>>,
    work: F,
    result: Option<Result<R, Failed>>,
    caller: Sender<Result<R, Failed>>,
}

impl<R, F> Pending<R, F> {
    /// Returns a call, and where its result arrives.
    pub(crate) fn new(keys: Vec<Vec<u8>>, work: F) -> (Self, Receiver<Result<R, Failed>>) {
        let (caller, receiver) = channel();
        let call = Self {
            keys,
            work,
            result: None,
            caller,
        };
        (call, receiver)
    }
}

impl<R, F> Call for Pending<R, F>
where
    R: Send,
    F: Fn(&mut [Held], Timestamp) -> Result<(R, Vec<bool>), Failed> + Send,
{
    fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    fn is_wanted(&self) -> bool {
        !self.caller.is_canceled()
    }

    fn run(&mut self, logs: &mut [Held], now: Timestamp) -> Vec<bool> {
        let (result, depends) = match (self.work)(logs, now) {
            Ok((result, depends)) => (Ok(result), depends),
            Err(failed) => (Err(failed), Vec::new()),
        };
        self.result = Some(result);
        depends
    }

    fn finish(self: Box<Self>, error: Option<&Error>) {
        let failed = error.map(|error| Err(Failed::from(error)));
        if let Some(result) = failed.or(self.result) {
            // The caller may be gone.
            let _ = self.caller.send(result);
        }
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

/// The results of a call's operations, and for each log whether they depend on it.
type Applied = (Vec<Result<Facts, Failed>>, Vec<bool>);

/// Applies operations as one. Advisory operations whose logs are damaged take no part, by item A7 of the contract.
pub(crate) fn apply_all(
    ops: &[OwnedOp],
    held: &mut [Held],
    now: Timestamp,
) -> Result<Applied, Failed> {
    // After an error, the batch goes on with these logs.
    for (i, (held, op)) in held.iter().zip(ops).enumerate() {
        if let Err(text) = held
            && !op.is_advisory
        {
            return Err(Failed::damaged(i, text));
        }
    }
    let mut logs = Vec::new();
    let mut joint = Vec::new();
    for (held, op) in held.iter_mut().zip(ops) {
        if let Ok(log) = held {
            logs.push(mem::take(log));
            joint.push(op.joint());
        }
    }
    let facts = Log::apply_all(&mut logs, &joint, now);
    let has_changed = facts.iter().any(appended);
    let mut applied = logs.into_iter().zip(facts);
    let mut results = Vec::new();
    let mut depends = Vec::new();
    for (i, (held, op)) in held.iter_mut().zip(ops).enumerate() {
        let result = match held {
            Err(text) => Err(Failed::damaged(i, text)),
            Ok(log) => {
                let applied = applied.next();
                let (after, facts) = applied.ok_or_else(|| Failed::damaged(i, "lost"))?;
                *log = after;
                Ok(facts)
            }
        };
        // No other operation depends on an advisory one that did not append.
        let changes = result.as_ref().is_ok_and(appended);
        depends.push(has_changed && (changes || !op.is_advisory));
        results.push(result);
    }
    Ok((results, depends))
}
