//! Futures that are dropped before they finish, and the duration of one poll.

mod dropped;
mod dropping;
mod histories;
mod polls;

use limiter_core::WindowStore;

use crate::conformance::suite::failure::Findings;
use crate::conformance::suite::run::Run;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    polls::run(run, findings).await;
    for dropped in dropped::cases() {
        if dropping::run(run, &dropped, findings).await.is_err() {
            // A store that hangs once would hang again.
            return;
        }
    }
}
