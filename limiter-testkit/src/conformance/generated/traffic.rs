//! Random traffic that keeps limits nearly full.

use limiter_core::store::Mode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use crate::conformance::strategy::{START, coarse, limit, policy};

/// Returns sequences on one key that keep limits nearly full, under up to two policies, at times that suit the windows.
pub(super) fn traffic() -> impl Strategy<Value = Case, Tree: Send> {
    const WINDOWS: [u64; 6] = [20, 35, 60, 60, 130, 200];
    const FRACTIONS: [u64; 5] = [0, 1, 3, 6, 20];
    const SCALES: [u64; 3] = [1, 10, 60_000_000];
    const TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    let raw_limit = (2..=12_u64, 0..WINDOWS.len(), any::<bool>());
    let step = (
        0..20_u8,
        0..TIMES.len(),
        1..=3_u64,
        0..8_u8,
        0..60_i64,
        any::<Index>(),
    );
    let raw_policy = (vec(raw_limit, 1..=3), 0..FRACTIONS.len(), any::<bool>());
    let policies = (vec(raw_policy, 1..=2), 0..4_u8);
    (policies, 0..SCALES.len(), vec(step, 20..=60)).prop_map(
        |((mut policies, pair), scale, raw)| {
            let scale = SCALES[scale];
            if let ([(default, fraction, _), (own, none, _)], 0) = (&mut policies[..], pair) {
                // Entries with a faster policy displace entries that the first counts. Exact limits give each a receipt.
                default.truncate(1);
                *own = vec![(own[0].0.min(default[0].0), 0, false)];
                (*fraction, *none) = (0, 0);
            }
            let policies = policies.into_iter().map(|(raw, fraction, attempts)| {
                let limits = raw.iter().map(|(max, window, is_coarse)| {
                    (limit(*max, WINDOWS[*window] * scale), *is_coarse)
                });
                policy(&coarse(limits, FRACTIONS[fraction]), attempts)
            });
            let step = |(number, (kind, time, cost, id, jitter, other)): (
                usize,
                (_, usize, u64, u8, i64, Index),
            )| {
                let run = |mode, policy| Operation::Run {
                    mode,
                    on: Place::default(),
                    policy,
                    cost,
                    id: (id == 7).then_some(CaseId::Fresh(number as u8)),
                };
                let operation = match kind {
                    0 | 1 => run(Mode::Record, 0),
                    2..=6 => run(Mode::Acquire, 1),
                    7..=10 if number > 0 => {
                        let step = number - 1 - other.index(number.min(12));
                        Operation::Settle {
                            step,
                            on: None,
                            cost: (cost - 1) / 2,
                            policy: 0,
                        }
                    }
                    _ => run(Mode::Acquire, 0),
                };
                let scale = scale as i64;
                Step {
                    after: TIMES[time] * scale + jitter * (scale / 60),
                    operation,
                }
            };
            let steps = raw.into_iter().enumerate().map(step).collect();
            Case {
                policies: policies.collect(),
                limiters: vec![CaseLimiter {
                    name: 0,
                    policy: Some(0),
                }],
                start: START,
                steps,
            }
        },
    )
}
