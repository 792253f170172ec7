//! The suite finds stores that apply several operations wrongly.

use std::sync::Arc;

use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Outcome, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{Error, SyncStore, WindowStore};
use limiter_testkit::ReferenceStore;
use limiter_testkit::conformance::{Phase, Sentence, Suite};

#[derive(Clone, Copy, Debug)]
enum Flaw {
    SaysLogsGoTogetherAndCannot,
    ChangesOneLogAfterTheOther,
    ChargesWhatFitsIfAnotherDenies,
    KeepsNoCharge,
    DropsTheAttemptThatDenies,
    LetsAdvisoryOperationsDeny,
    LooksAtRepetitions,
}

#[derive(Debug)]
struct Flawed(Flaw, ReferenceStore);

#[async_trait]
impl WindowStore for Flawed {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.1.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.1.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.1.reset_now(log))
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.1.place(log)
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let mut ops = ops.to_vec();
        let fits = |joint: &JointOp<'_>| !joint.denies(self.1.apply_now(&joint.op.to_peek()).admitted);
        let denied = !ops.iter().all(fits);
        let peek = |joint: &JointOp<'_>| Ok(self.1.apply_now(&joint.op.to_peek()));
        match self.0 {
            Flaw::SaysLogsGoTogetherAndCannot => return Ok(None),
            Flaw::ChangesOneLogAfterTheOther if !denied && ops.iter().all(|joint| joint.op.id.is_none()) => {
                let alone = |joint: &JointOp<'_>| {
                    std::thread::yield_now();
                    Ok(self.1.apply_now(&joint.op))
                };
                return Ok(Some(ops.iter().map(alone).collect()));
            }
            Flaw::ChargesWhatFitsIfAnotherDenies => {
                return Ok(Some(ops.iter().map(|joint| Ok(self.1.apply_now(&joint.op))).collect()));
            }
            Flaw::DropsTheAttemptThatDenies if denied => return Ok(Some(ops.iter().map(peek).collect())),
            Flaw::KeepsNoCharge => ops.iter_mut().for_each(|joint| joint.keeps_charge = false),
            Flaw::LetsAdvisoryOperationsDeny => ops.iter_mut().for_each(|joint| joint.is_advisory = false),
            _ => {}
        }
        let mut results = self.1.apply_all(&ops).await?.unwrap_or_default();
        if let (Flaw::LooksAtRepetitions, true) = (self.0, denied) {
            for (joint, result) in ops.iter().zip(&mut results) {
                if result.as_ref().is_ok_and(|facts| matches!(facts.outcome, Outcome::Repeated(_))) {
                    *result = peek(joint);
                }
            }
        }
        Ok(Some(results))
    }
}

#[test]
fn every_flaw_is_found() {
    use Sentence::{A1, A2, A4, A5, A6};
    for (flaw, sentences) in [
        (Flaw::SaysLogsGoTogetherAndCannot, &[A1][..]),
        (Flaw::ChangesOneLogAfterTheOther, &[A2]),
        (Flaw::ChargesWhatFitsIfAnotherDenies, &[A5]),
        (Flaw::KeepsNoCharge, &[A5]),
        (Flaw::DropsTheAttemptThatDenies, &[A5, A6]),
        (Flaw::LetsAdvisoryOperationsDeny, &[A4, A5]),
        (Flaw::LooksAtRepetitions, &[A6]),
    ] {
        let suite = Suite::new().seed(1).phases(&[Phase::Several]);
        let failure = suite.run_blocking(Arc::new(Flawed(flaw, ReferenceStore::new()))).unwrap_err();
        let is_cited = |sentence| failure.sentences().contains(sentence);
        assert!(sentences.iter().any(is_cited), "{flaw:?}: {failure}");
    }
}
