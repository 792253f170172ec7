//! Calls of the store that wait in the queue.

use std::task::{Context, Poll};

use futures_channel::oneshot::{Receiver, Sender, channel};
use limiter_core::store::{
    At, Change, EntryId, Facts, JointOp, Log, LogKey, Mode, Op, Outcome, Settlement,
    SettlementFacts,
};
use limiter_core::{Error, ErrorKind, Name, Policy, Receipt, Timestamp};

/// A loaded log, or the reason why the bytes are not one.
pub(crate) type Held = Result<Log, String>;

/// A failure of a call: of one of its logs, or of all.
#[derive(Debug)]
pub(crate) struct Failed {
    kind: ErrorKind,
    text: String,
    /// The position of the log among those of the call.
    log: Option<usize>,
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

/// A call, which waits for the logs of its keys.
pub(crate) struct Call {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) work: Work,
}

/// What a call does with its logs.
pub(crate) enum Work {
    /// Operations that are applied as one, each to its log.
    Apply(Vec<OwnedOp>, Reply<Vec<Result<Facts, Failed>>>),
    Settle(Box<OwnedSettlement>, Reply<SettlementFacts>),
    Reset(Reply<bool>),
}

/// The result of a call, and the caller that waits for it.
pub(crate) struct Reply<R> {
    result: Option<Result<R, Failed>>,
    caller: Sender<Result<R, Failed>>,
}

/// The result of a call, and for each of its logs whether the result depends on it; empty if none changed.
type Done<R> = Result<(R, Vec<bool>), Failed>;

impl<R> Reply<R> {
    /// Returns a reply, and where the result arrives.
    pub(crate) fn new() -> (Self, Receiver<Result<R, Failed>>) {
        let (caller, receiver) = channel();
        let result = None;
        (Self { result, caller }, receiver)
    }

    fn set(&mut self, done: Done<R>) -> Vec<bool> {
        let (result, depends) = match done {
            Ok((result, depends)) => (Ok(result), depends),
            Err(failed) => (Err(failed), Vec::new()),
        };
        self.result = Some(result);
        depends
    }

    fn send(self, error: Option<&Error>) {
        let failed = error.map(|error| Err(Failed::from(error)));
        if let Some(result) = failed.or(self.result) {
            // The caller may be gone.
            let _ = self.caller.send(result);
        }
    }
}

impl Call {
    /// Completes once the caller is gone.
    pub(crate) fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.work {
            Work::Apply(_, reply) => reply.caller.poll_canceled(context),
            Work::Settle(_, reply) => reply.caller.poll_canceled(context),
            Work::Reset(reply) => reply.caller.poll_canceled(context),
        }
    }

    /// Changes the logs of its keys, and returns for each whether the result depends on it; empty if none changed. It runs once for
    /// each attempt; the last one counts.
    pub(crate) fn run(&mut self, logs: &mut [Held], now: Timestamp) -> Vec<bool> {
        match &mut self.work {
            Work::Apply(ops, reply) => reply.set(apply(ops, logs, now)),
            Work::Settle(settlement, reply) => reply.set(settlement.settle(logs, now)),
            Work::Reset(reply) => reply.set(Ok(reset(logs))),
        }
    }

    /// Sends the result to the caller.
    pub(crate) fn finish(self, error: Option<&Error>) {
        match self.work {
            Work::Apply(_, reply) => reply.send(error),
            Work::Settle(_, reply) => reply.send(error),
            Work::Reset(reply) => reply.send(error),
        }
    }
}

/// An operation that outlives its caller. It has all that [`Log`] reads.
pub(crate) struct OwnedOp {
    policy: Policy,
    limiter_policy: Option<Policy>,
    mode: Mode,
    cost: u64,
    at: At,
    id: Option<EntryId>,
    is_advisory: bool,
    keeps_charge: bool,
}

impl From<&JointOp<'_>> for OwnedOp {
    fn from(joint: &JointOp<'_>) -> Self {
        let op = &joint.op;
        Self {
            policy: op.policy.clone(),
            limiter_policy: op.limiter_policy.cloned(),
            mode: op.mode,
            cost: op.cost,
            at: op.at,
            id: op.id,
            is_advisory: joint.is_advisory,
            keeps_charge: joint.keeps_charge,
        }
    }
}

impl OwnedOp {
    fn joint(&self) -> JointOp<'_> {
        let mut op = Op::new(self.mode, "", &self.policy).with_cost(self.cost);
        (op.at, op.id) = (self.at, self.id);
        op.limiter_policy = self.limiter_policy.as_ref();
        JointOp {
            op,
            is_advisory: self.is_advisory,
            keeps_charge: self.keeps_charge,
        }
    }
}

/// Applies operations as one. Advisory operations whose logs are damaged take no part, by item A7 of the contract.
fn apply(ops: &[OwnedOp], held: &mut [Held], now: Timestamp) -> Done<Vec<Result<Facts, Failed>>> {
    // After an error, the batch goes on with these logs.
    for (i, (held, op)) in held.iter().zip(ops).enumerate() {
        if let Err(text) = held
            && !op.is_advisory
        {
            return Err(Failed::damaged(i, text));
        }
    }
    let sound = held.iter().zip(ops).filter(|(held, _)| held.is_ok());
    let joint: Vec<JointOp<'_>> = sound.map(|(_, op)| op.joint()).collect();
    let logs = held.iter_mut().flatten();
    let mut facts = Log::apply_all(logs, &joint, now).into_iter();
    let results = held.iter().enumerate().map(|(i, held)| match held {
        Ok(_) => facts.next().ok_or_else(|| Failed::damaged(i, "no facts")),
        Err(text) => Err(Failed::damaged(i, text)),
    });
    let results: Vec<_> = results.collect();
    let appends = |result: &Result<Facts, _>| {
        let facts = result.as_ref();
        facts.is_ok_and(|facts| matches!(facts.outcome, Outcome::Appended(_)))
    };
    let has_changed = results.iter().any(appends);
    // No other operation depends on an advisory one that did not append.
    let depends = results.iter().zip(ops);
    let depends = depends.map(|(result, op)| has_changed && (appends(result) || !op.is_advisory));
    let depends = depends.collect();
    Ok((results, depends))
}

/// A settlement that outlives its caller.
pub(crate) struct OwnedSettlement {
    policy: Policy,
    limiter_policy: Option<Policy>,
    receipt: Receipt,
    change: Change,
    at: At,
}

impl From<&Settlement<'_>> for OwnedSettlement {
    fn from(settlement: &Settlement<'_>) -> Self {
        Self {
            policy: settlement.policy.clone(),
            limiter_policy: settlement.limiter_policy.cloned(),
            receipt: settlement.receipt,
            change: settlement.change,
            at: settlement.at,
        }
    }
}

impl OwnedSettlement {
    fn settle(&self, held: &mut [Held], now: Timestamp) -> Done<SettlementFacts> {
        let log = LogKey::new(Name::default(), "");
        let mut settlement = Settlement::renewal(log, &self.policy, self.receipt);
        (settlement.change, settlement.at) = (self.change, self.at);
        settlement.limiter_policy = self.limiter_policy.as_ref();
        match held {
            [Ok(log)] => {
                let facts = log.settle(&settlement, now);
                let changed = facts.applied();
                Ok((facts, vec![changed]))
            }
            [Err(text)] => Err(Failed::damaged(0, text)),
            _ => Err(Failed::damaged(0, "expected one log")),
        }
    }
}

/// Empties logs. Returns `true` if there was an entry, or a damaged log.
fn reset(held: &mut [Held]) -> (bool, Vec<bool>) {
    let is_empty = |held: &Held| held.as_ref().is_ok_and(Log::is_empty);
    let removed = !held.iter().all(is_empty);
    held.fill_with(|| Ok(Log::new()));
    (removed, vec![removed])
}
