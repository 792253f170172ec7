//! Histories keep the promises, the same seed makes the same trace, and mistakes are found.

use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::{History, Mistake, Tally};

/// Plays histories until one breaks a rule. Returns its seed and the rule, or what all have done.
fn play(seeds: Range<u64>, speed: f64, mistake: Option<Mistake>) -> Result<Tally, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(tally);
            }
            let history = History::new(seed).with_server_speed(speed);
            let outcome = history.play(false, mistake);
            if let Some(rule) = outcome.broken.into_iter().next() {
                next.store(seeds.end, Ordering::Relaxed);
                return Err((seed, rule));
            }
            tally.add(&outcome.tally);
        }
    };
    std::thread::scope(|scope| {
        let mut all = Tally::default();
        for worker in [scope.spawn(work), scope.spawn(work)] {
            all.add(&worker.join().unwrap()?);
        }
        Ok(all)
    })
}

#[test]
fn histories_keep_the_promises() {
    const SHOW: &str = "cargo run -p sim -- --seed N --shrink shows it";
    let tally = play(0..300, 1.0, None).expect(SHOW).to_string();
    let documented = include_str!("../../docs/faults.md");
    assert!(
        documented.contains(&tally),
        "docs/faults.md differs: cargo run -p sim\n{tally}"
    );
    if std::env::var_os("LIMITER_TEST_ALL").is_some() {
        play(300..1_000, 1.0, None).expect(SHOW);
    }
}

/// In two processes, because the operating system seeds each.
#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace = |seed: u64| {
        let seed = seed.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
        let output = command.args(["--seed", &seed]).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    for seed in 0..20 {
        let one = trace(seed);
        assert!(one.len() > 1_000 && one == trace(seed), "seed {seed}");
    }
}

/// What is wrong, and the rule that it breaks.
const MISTAKES: [(&str, Mistake, &str); 9] = [
    (
        "a repetition does not look for its entry",
        ("if id_of(member) == id then entry = member end", ""),
        "counts twice",
    ),
    (
        "a late first attempt does not look for its repetition",
        (
            "if is_own and since and exact ~= 0 and now < parse('>I7', since, 15)",
            "if false",
        ),
        "counts twice",
    ),
    (
        "a caller's id is forgotten early",
        (
            "log.t - at < (exact or longest.window)",
            "log.t - at < 1000",
        ),
        "counts twice",
    ),
    (
        "a window does not include the lease",
        (
            "if place > 23 + 1 then",
            "if window == 500000 then window = 400000 end if place > 23 + 1 then",
        ),
        "contract",
    ),
    (
        "an attempt past its deadline counts",
        ("now >= parse('>I7', args[1], 4)", "false"),
        "gave up",
    ),
    (
        "a refund is applied to another entry",
        (
            "local target, t = find_receipt(log), log.t",
            "local target, t = log.newest, log.t",
        ),
        "contract",
    ),
    (
        "an entry too many is dropped",
        ("op.cap - cost)", "op.cap - cost - 1)"),
        "contract",
    ),
    (
        "a key expires a cell early",
        ("(ttl % 64 + 1) * cell", "(ttl % 64 - 1) * cell"),
        "gone before",
    ),
    (
        "an entry that has expired is settled",
        (
            "log.t - at >= window then return nil",
            "false then return nil",
        ),
        "contract",
    ),
];

#[test]
fn each_mistake_is_found() {
    for (mistake, what, rule) in MISTAKES {
        let found = play(0..1_000, 1.0, Some(what)).map(drop);
        println!("{mistake}: {found:?}");
        assert!(
            found.is_err_and(|(_, text)| text.contains(rule)),
            "{mistake}"
        );
    }
    let found = play(0..1_000, 2.0, None).map(drop);
    println!("a server whose clock is twice as fast: {found:?}");
    assert!(found.is_err());
}
