//! The cases written by hand, at given times.

mod at_once;

use limiter_core::{Name, WindowStore, policy};

use crate::conformance::cases::places::{Trio, keys, names};
use crate::conformance::cases::script::{Script, script};
use crate::conformance::cases::scripts;
use crate::conformance::sentence::Sentence::{E1, E2, F1, F2, L1, L11, S8, T1, T2, T3, T4};
use crate::conformance::sequence::case::CaseLimiter;
use crate::conformance::sequence::plan::{Call, Log, Plan};
use crate::conformance::sequence::put::Places;
use crate::conformance::sequence::replay::{Mismatch, Replay};
use crate::conformance::suite::{Finding, Findings, Run};

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    at_once::run(run, findings).await;
    for round in (0..3).rev().take(run.sizes().rounds_of_cases) {
        for script in scripts() {
            let planned = match round {
                // Last in order, first to run: a look after every step says which step goes wrong.
                2 => Plan::watched(&script.case),
                1 => Plan::of(&script.case),
                _ => Plan::of(&script.clone().counting_otherwise().case),
            };
            let result = match planned {
                Ok(plan) => run.replay(&plan, round).await.map_err(|mismatch| finding(&script, &plan, mismatch)),
                Err(text) => Err(Finding::new(script.name, &[], text)),
            };
            match result {
                Ok(()) => run.report.cases += 1,
                Err(finding) => findings.push(finding),
            }
        }
        if !findings.is_empty() {
            break;
        }
    }
    in_places(run, findings).await;
}

/// The failing case, about the sentences of the step that failed.
pub(crate) fn finding(script: &Script, plan: &Plan, mismatch: Mismatch) -> Finding {
    let mut cites = script.cites.get(mismatch.step).cloned().unwrap_or_default();
    // Some answers are wrong in a way that says more than the step.
    let more = mismatch.cites.first().filter(|cite| matches!(cite.item, T1 | T2 | T3 | T4 | L11 | E1 | E2 | F1 | F2));
    if matches!(plan.calls[mismatch.call].call, Call::Reset { .. }) && more.is_none() {
        cites = vec![S8.nth(1)];
    } else {
        let more = more.filter(|cite| !cites.iter().any(|own| own.item == cite.item)).copied();
        cites.splice(0..0, more);
    }
    Finding::about(format!("case \"{}\"", script.name), &cites, mismatch)
}

/// One case on keys, and under names, that a store might confuse.
async fn in_places<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let limits = policy!("2/10us");
    let on_keys = script("three logs", &[L1.nth(1)], limits)
        .for_each([0, 1, 2, 0, 1, 2, 0], |script, key| script.acquire(1).key(key).id(key))
        .for_each([0, 1, 2], |script, key| script.record(1).key(key))
        .reset()
        .key(1)
        .for_each([0, 1, 2], |script, key| script.acquire(1).key(key));
    let number: String = run.new_key().bytes().map(|byte| char::from(b'1' + byte % 9)).collect();
    for keys in keys(&run.new_key(), &number, run.sizes().huge_keys) {
        put(run, findings, &on_keys, &Trio { names: [Name::new("conformance"); 3], keys }).await;
    }
    for trio in names(&run.new_name(), &run.new_key()) {
        put(run, findings, &on_keys, &trio).await;
    }
}

async fn put<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings, script: &Script, trio: &Trio) {
    // The case's three keys become three names as well.
    let mut case = script.case.clone();
    case.limiters = (0..3).map(|name| CaseLimiter { name, policy: None }).collect();
    for step in &mut case.steps {
        step.operation.each_key_is_a_limiter();
    }
    let show = |i: usize| {
        let key = &trio.keys[i];
        let more = if key.len() > 64 { format!(" and {} more bytes", key.len() - 64) } else { String::new() };
        format!("{:?}/\"{}\"{more}", trio.names[i].as_str(), key[..key.len().min(64)].escape_ascii())
    };
    let title = format!("three logs, by name and key: {}, {}, {}", show(0), show(1), show(2));
    let plan = match Plan::of(&case) {
        Ok(plan) => plan,
        Err(text) => return findings.push(Finding::new(title, &[], text)),
    };
    let logs = (0..3).map(|i| Log { name: i, key: i });
    let places = Places::of(logs, |key| trio.keys[usize::from(key)].clone()).with_names(trio.names.to_vec());
    run.count(plan.len() as u64);
    let handles = &run.handles()[..1];
    let result = Replay::new(handles, &places).run(&plan).await;
    match result {
        Ok(()) => run.report.cases += 1,
        Err(mismatch) => findings.push(Finding::about(title, &[L1.nth(1), L1.nth(2)], mismatch)),
    }
}
