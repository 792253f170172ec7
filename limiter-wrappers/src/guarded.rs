//! A store behind its guards, and the decisions while it is down.

mod blocks;
mod builder;
mod carried;
mod denials;
mod local;
mod nodes;
mod stand_in;
mod sweep;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::internal::within;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts, decide,
};
use limiter_core::{Clock, Decision, Error, ErrorKind, Name, WindowStore};
use tokio::time::{Instant, sleep_until};

pub use self::blocks::can_lease;
use self::blocks::{BlockRequest, Blocks, lease_of};
pub use self::builder::GuardedBuilder;
use self::denials::{Denials, Watch};
use self::local::Local;
pub use self::nodes::Outage;
use self::nodes::{CurrentOutage, Nodes, Proof, later};
use self::stand_in::StandIn;

/// A shorter timeout of a caller is no evidence against the store.
const SHORTEST_TIMEOUT_THAT_COUNTS: Duration = Duration::from_millis(100);

/// A store behind a denial cache, a circuit breaker and a timeout, with a choice for outages.
///
/// Clones share all state.
///
/// # The denial cache
/// A denial is kept until the next entry of its log expires, which is when its fields change. Until then the same request gets
/// the same decision, minus the time that has passed. Caches only denials by the store's clock, with a policy that counts
/// admitted requests and without an idempotency key, for at most [`GuardedBuilder::denial_ttl`].
///
/// A change of the log through this store invalidates its denial: a settlement, refund, reset or record, or an acquire that a
/// looser policy admits. Changes by other processes become visible when the denial is no longer kept. The cache assumes that the
/// store's clock does not step and runs as fast as the local clock.
///
/// # Blocks
/// With a [lease](limiter_core::Limit::with_lease), an acquire may take more units from the store than it costs. Later acquires of the
/// same key and policy are decided from this block without a call, until the lease ends. No window ever admits more than its maximum.
/// Permits, calls with an idempotency key or a given time, and policies that count attempts go to the store. Other acquires have
/// no receipt. What is not spent of a block counts until it expires. A reset drops the block of this process; blocks that other
/// processes hold may be spent for less than a lease after it. Do not fork a process that limits: both would spend the block.
///
/// # The circuit breaker
/// - *Closed*: calls pass. After [a number](GuardedBuilder::failure_threshold) of failures in a row it opens. A failure is an error of
///   the kind [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout). A timeout of a caller that waits for
///   [less than 100 ms](limiter_core::store::Hints::timeout) is not a failure: one caller in a hurry must not open the breaker for all.
/// - *Open*: calls fail immediately with [`Unavailable`](ErrorKind::Unavailable), for a [pause](GuardedBuilder::cooldown).
/// - *Half open*: after the pause one call passes as a probe, and the others still fail immediately. If the store responds, the
///   breaker closes. If not, it opens for another pause. A dropped probe is inconclusive, so another call passes after a pause.
///   So are `None` and errors that are not about the log's data: the next call is the probe.
///
/// # The timeout
/// A call that takes longer fails with [`ErrorKind::Timeout`]. An operation carries the [timeout](limiter_core::store::Hints::timeout) to the store,
/// and a `RedisStore` does not append after it. Other calls may still take effect later. To count an operation once, repeat it
/// with the same idempotency key. Calls need a tokio runtime, unless the store does not wait.
///
/// # Outages
/// An outage begins with the first failure. It is over when the store has responded to every call for a second. If only calls that
/// write have failed, it has also written since, or no call has failed for a minute: a full Redis still responds to reads. During
/// an outage, failed calls get the result of the builder's last method: [`or_error`](GuardedBuilder::or_error),
/// [`fail_open`](GuardedBuilder::fail_open), [`fail_closed`](GuardedBuilder::fail_closed) or [`fallback`](GuardedBuilder::fallback). Other errors are
/// returned. An operation that timed out may still count in the store later.
///
/// Breakers and outages are tracked per [node](WindowStore::node), so a dead master of a Redis Cluster stops only the calls on its
/// logs.
///
/// # Cancel safety
/// As the store's. A dropped reset has cleared a fallback's local log and its carried charges.
pub struct Guarded<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: S,
    timeout: Duration,
    blocks: Blocks,
    denials: Denials,
    nodes: Nodes,
    stand_in: StandIn,
}

impl<S> Guarded<S> {
    /// Adds a listener, which is called once when an outage begins and once when it ends, within the call that notices it. Default:
    /// none.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.0.nodes.listen(listener);
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Whether an outage of any node has begun and is not over.
    pub fn in_outage(&self) -> bool {
        self.0.nodes.in_outage()
    }

    /// Returns the nodes that have failed since the start, and whether an outage of each is not over.
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.0.nodes.which(|_| true)
    }

    /// Returns the nodes that have failed since the start, and whether the breaker of each is open. A call may still pass as a probe.
    pub fn breakers(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.0.nodes.which(CurrentOutage::has_open_breaker)
    }

    /// Returns how many outages of nodes have begun.
    pub fn outages(&self) -> u64 {
        self.0.nodes.begun()
    }

    /// Returns how many acquires were decided from blocks, and how many with a [lease](limiter_core::Limit::with_lease) called the store.
    pub fn lease_decisions(&self) -> (u64, u64) {
        self.0.blocks.counts()
    }

    /// Returns the units that this process holds in blocks and can still spend, by the name of the limiter.
    pub fn held_in_blocks(&self) -> HashMap<Name, u64> {
        self.0.blocks.held()
    }

    /// Returns how many logs wait to be carried over.
    pub fn carried_logs(&self) -> usize {
        self.0.stand_in.local().map_or(0, Local::waiting)
    }

    /// Returns how many logs were never carried over because there were more than 100,000.
    pub fn dropped(&self) -> u64 {
        let local = self.0.stand_in.local();
        local.map_or(0, |local| local.locked(|carried| carried.dropped))
    }
}

impl<S: WindowStore> Guarded<S> {
    /// Waits until everything is carried over, but no longer than `timeout`. Returns how many logs are left.
    ///
    /// Call it at shutdown, after the last request.
    ///
    /// # Cancel safety
    /// Nothing is lost: the sweep continues.
    pub async fn flush(&self, timeout: Duration) -> usize {
        let deadline = later(timeout);
        while self.carried_logs() > 0 && Instant::now() < deadline {
            self.0.start_sweep();
            sleep_until(deadline.min(Instant::now() + Duration::from_millis(5))).await;
        }
        self.carried_logs()
    }

    /// Returns the result of an operation, or its replacement if the store is down.
    fn or_stand_in<T>(
        &self,
        result: Result<T, Error>,
        replaced: impl FnOnce(&StandIn) -> Option<T>,
    ) -> Result<T, Error> {
        let result = result.or_else(|error| match error.is_retryable() {
            true => replaced(&self.0.stand_in).ok_or(error),
            false => Err(error),
        });
        self.0.start_sweep();
        result
    }
}

impl<S: WindowStore> Inner<S> {
    /// Makes a call for a caller that waits for `patience`, unless the breaker of the log's node is open. `writes` is whether the
    /// store may have to write for it.
    async fn call<T>(
        &self,
        log: LogKey<'_>,
        patience: Option<Duration>,
        writes: bool,
        call: impl Future<Output = Result<T, Error>>,
        proof: fn(&T) -> Proof,
    ) -> Result<T, Error> {
        let node = || self.store.node(log);
        self.nodes.admit(node)?;
        let timeout = patience.map_or(self.timeout, |patience| {
            in_millis(patience.min(self.timeout))
        });
        let result = within(Some(timeout), call).await;
        let is_hurried = patience.is_some_and(|patience| patience < SHORTEST_TIMEOUT_THAT_COUNTS);
        let proof = match &result {
            Ok(result) => Ok(proof(result)),
            Err(error) => match error.kind() {
                ErrorKind::Timeout if is_hurried => return result,
                ErrorKind::Corrupt | ErrorKind::Inconsistent => Ok(Proof::Responds),
                _ if error.is_retryable() => Err((error, writes)),
                // The library's, or a refusal: no decision, and no outage.
                _ => Ok(Proof::Nothing),
            },
        };
        self.nodes.note(proof, node);
        result
    }

    /// Decides operations as one, or a single one: by their cached denials, by blocks, or by the store.
    async fn decide(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let denied = ops.iter().map(|joint| self.denials.find(&joint.op).map(Ok));
        let known = denied.collect::<Option<JointFacts>>();
        if let Some(known) = known.or_else(|| self.blocks.spend_all(ops)) {
            return Ok(Some(known));
        }
        let mut requests = self.blocks.ask_all(ops);
        let mut sent = Instant::now();
        let mut asked = ops.to_vec();
        for (joint, request) in asked.iter_mut().zip(&requests) {
            if let Some(request) = request {
                joint.op = request.with_block(joint.op);
            }
        }
        let (mut results, mut watches) = self.apply(&asked).await?;
        let refuses = |(request, facts): (&Option<BlockRequest<'_>>, &Result<Facts, Error>)| {
            request.is_some() && facts.as_ref().is_ok_and(|facts| !facts.admitted)
        };
        if requests.iter().zip(results.iter().flatten()).any(refuses) {
            // Nothing was appended. Without the blocks, all may fit.
            requests.fill_with(|| None);
            // Dropped later, they would take the denial for outdated.
            watches.clear();
            for (joint, original) in asked.iter_mut().zip(ops) {
                joint.op = left_to_wait(original.op, sent);
            }
            sent = Instant::now();
            (results, watches) = self.apply(&asked).await?;
        }
        let calls = asked.iter().zip(requests).zip(watches);
        for (((joint, request), watch), result) in calls.zip(results.iter_mut().flatten()) {
            let Ok(facts) = result else { continue };
            match request {
                None => {
                    watch.end(&joint.op, facts);
                    self.blocks.note(&joint.op, facts, sent);
                }
                Some(request) => {
                    facts.verify(&joint.described_by(facts))?;
                    *facts = request.grant(&joint.op, facts.clone());
                }
            }
        }
        Ok(results)
    }

    /// Lets the store apply operations, and watches their logs for changes meanwhile.
    async fn apply(
        &self,
        ops: &[JointOp<'_>],
    ) -> Result<(Option<JointFacts>, Vec<Watch<'_>>), Error> {
        let Some(first) = ops.first() else {
            return Ok((Some(Vec::new()), Vec::new()));
        };
        // One node's outage does not concern other nodes' logs.
        let node = |joint: &JointOp<'_>| self.store.node(joint.op.log);
        if self.nodes.in_outage() && ops.iter().any(|joint| node(joint) != node(first)) {
            return Ok((None, Vec::new()));
        }
        let watch = |joint: &JointOp<'_>| self.denials.watch(joint.op.log);
        let watches = ops.iter().map(watch).collect();
        let mut timed = ops.to_vec();
        for joint in &mut timed {
            joint.op = joint.op.with_timeout(self.timeout);
        }
        let apply = async {
            match &timed[..] {
                [joint] if !joint.is_advisory => {
                    let facts = self.store.apply(joint.op).await?;
                    Ok(Some(vec![Ok(facts)]))
                }
                _ => self.store.apply_all(&timed).await,
            }
        };
        let patience = ops.iter().filter_map(|joint| joint.op.hints.timeout).min();
        let writes = ops.iter().any(|joint| joint.op.mode != Mode::Peek);
        let proof = |results: &Option<JointFacts>| match results {
            None => Proof::Nothing,
            Some(results) if results.iter().flatten().any(has_appended) => Proof::Writes,
            Some(_) => Proof::Responds,
        };
        let results = self.call(first.op.log, patience, writes, apply, proof);
        Ok((results.await?, watches))
    }
}

fn has_appended(facts: &Facts) -> bool {
    matches!(facts.outcome, Outcome::Appended(_))
}

/// Returns what a change proves.
fn changed(has_effect: bool) -> Proof {
    if has_effect {
        Proof::Writes
    } else {
        Proof::Responds
    }
}

/// Returns the nearest number of milliseconds. tokio's timer rounds up, which would add up over the calls of a decision.
fn in_millis(duration: Duration) -> Duration {
    let nearest = duration.saturating_add(Duration::from_micros(500));
    Duration::new(nearest.as_secs(), nearest.subsec_millis() * 1_000_000)
}

/// Returns the operation with what is left of its timeout, which began at `sent`.
fn left_to_wait(mut op: Op<'_>, sent: Instant) -> Op<'_> {
    let timeout = op.hints.timeout;
    op.hints.timeout = timeout.map(|timeout| timeout.saturating_sub(sent.elapsed()));
    op
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: WindowStore> WindowStore for Guarded<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        only(
            self.apply_all(&[op.into()])
                .await
                .map_err(|error| error.with_log(op.log))?,
        )
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let log = settlement.log;
        let local = self.0.stand_in.local();
        if let Some(facts) = local.and_then(|local| local.settle(&settlement)) {
            self.0.start_sweep();
            return Ok(facts);
        }
        let _watch = self.0.denials.watch(log);
        let settled = self.0.store.settle(settlement);
        let settled = self
            .0
            .call(log, None, true, settled, |facts| changed(facts.applied()))
            .await;
        self.or_stand_in(settled.map_err(|error| error.with_log(log)), |stand_in| {
            stand_in.settle(&settlement)
        })
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        if let Some(local) = self.0.stand_in.local() {
            local.locked(|carried| {
                carried.remove(log);
                local.store.reset_now(log);
            });
        }
        let _watch = self.0.denials.watch(log);
        let _forget = self.0.blocks.forget(log);
        let reset = self.0.store.reset(log);
        let reset = self
            .0
            .call(log, None, true, reset, |existed| changed(*existed))
            .await;
        reset.map_err(|error| error.with_log(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let results = self.0.decide(ops).await;
        let all_ok = |facts: Vec<Facts>| Some(facts.into_iter().map(Ok).collect());
        let mut results = self.or_stand_in(results, |stand_in| stand_in.apply_all(ops).map(all_ok));
        if let Ok(Some(results)) = &mut results {
            for (joint, result) in ops.iter().zip(results) {
                if let Ok(facts) = result {
                    facts.refundable &= lease_of(&joint.op).is_none();
                }
            }
        }
        results
    }

    /// Spends blocks and repeats cached denials. A store that decides without waiting is not asked here, so its denials are also cached.
    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let spent = self.0.blocks.spend(&op).map(|(facts, _)| facts);
        let facts = spent.or_else(|| self.0.denials.find(&op))?;
        Some(op.checked().map(|op| decide(&op, facts)))
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(self.store())
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.store().clock()
    }

    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        self.store().node(log)
    }

    fn identity(&self) -> Option<usize> {
        self.store().identity()?;
        Some(Arc::as_ptr(&self.0).addr())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Returns the facts of a single operation.
fn only(results: Option<JointFacts>) -> Result<Facts, Error> {
    let none = || Error::new(ErrorKind::Inconsistent, "the store returned no facts");
    let first = results.and_then(|mut results| results.pop());
    first.ok_or_else(none)?
}

impl<S> Clone for Guarded<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: fmt::Debug> fmt::Debug for Guarded<S> {
    /// Prints no keys, and takes no lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Guarded");
        out.field("store", &self.0.store)
            .field("timeout", &self.0.timeout)
            .field("nodes", &self.0.nodes)
            .field("stand_in", &self.0.stand_in)
            .finish_non_exhaustive()
    }
}
