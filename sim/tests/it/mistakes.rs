//! Mistakes that the histories must find: those in Lua within 1,000 seeds, those in Rust within 2,000.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use sim::{History, Mistake, play_many};

/// What is wrong, a part of the shipped scripts with its replacement, and the rule that it breaks.
const IN_LUA: [(&str, Mistake, &str); 12] = [
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
        "a repetition looks for its entry no earlier than the clocks say",
        ("first) - 1000000", "first)"),
        "counts twice",
    ),
    (
        "a window is a microsecond short",
        (
            "if place > 23 + 1 then",
            "window = window - 1 if place > 23 + 1 then",
        ),
        "contract",
    ),
    (
        "a window is a microsecond long",
        (
            "if place > 23 + 1 then",
            "window = window + 1 if place > 23 + 1 then",
        ),
        "contract",
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
fn each_mistake_in_lua_is_found() {
    let mut missed = Vec::new();
    for (mistake, what, rule) in IN_LUA {
        let (_, found) = play_many(0..1_000, History::new, Some(what), 1);
        println!("{mistake}: {found:?}");
        if !found.values().any(|text| text.contains(rule)) {
            missed.push(mistake);
        }
    }
    let twice_as_fast = |seed| History::new(seed).with_server_speed(2.0);
    let (_, found) = play_many(0..1_000, twice_as_fast, None, 1);
    println!("a server whose clock is twice as fast: {found:?}");
    assert!(!found.is_empty() && missed.is_empty(), "{missed:?}");
}

/// What is wrong, the file with an expression and its replacement, and the rule that it breaks.
const IN_RUST: [(&str, &str, Mistake, &str); 15] = [
    (
        "a reset keeps the block",
        "limiter-wrappers/src/guarded/blocks.rs",
        ("self.1.map(|place| self.0.slots.remove(&place))", "None"),
        "spends",
    ),
    (
        "a denial is kept for longer than it holds",
        "limiter-wrappers/src/guarded/denials.rs",
        (
            "denials.max_age.min(Duration::from_micros(wait))",
            "denials.max_age",
        ),
        "repeats a denial",
    ),
    (
        "a denial holds from its reply on",
        "limiter-wrappers/src/guarded/denials.rs",
        ("self.sent.checked_add(age)", "received.checked_add(age)"),
        "repeats a denial",
    ),
    (
        "a change keeps the process's own denial",
        "limiter-wrappers/src/guarded/denials.rs",
        ("self.denials.forget(self.hash)", "()"),
        "repeats a denial",
    ),
    (
        "a breaker never closes",
        "limiter-wrappers/src/guarded/nodes.rs",
        ("self.responded(proof, &node())", "drop((proof, node()))"),
        "as before after a minute",
    ),
    (
        "a charge is carried over again with a new id",
        "limiter-wrappers/src/guarded/carried.rs",
        (
            "*log.frozen.get_or_insert(new_id)",
            "*log.frozen.insert(new_id)",
        ),
        "carried over",
    ),
    (
        "a slot is held for all of the window",
        "limiter-core/src/request/hold.rs",
        ("window - window / 64", "window"),
        "worked in for too long",
    ),
    (
        "a slot is given back when it is renewed",
        "limiter-core/src/request/hold.rs",
        (
            "timeout_at(sent + self.held_for, self.permit.renew()).await",
            "{ let renewed = timeout_at(sent + self.held_for, self.permit.renew()).await; give_back(self.permit.clone()).await; renewed }",
        ),
        "are held",
    ),
    (
        "a slot is held from the reply on",
        "limiter-core/src/request/permit.rs",
        (
            "sent.filter(|_| !decision.is_repeated())",
            "moment().filter(|_| !decision.is_repeated())",
        ),
        "worked in for too long",
    ),
    (
        "a block is spent from its reply on",
        "limiter-wrappers/src/guarded/blocks.rs",
        (
            "self.sent.has_passed(lease - lease / 64, now)",
            "now.monotonic.duration_since(self.received) >= lease - lease / 64",
        ),
        "spends a block that has ended",
    ),
    (
        "a block is spent for the whole lease",
        "limiter-wrappers/src/guarded/blocks.rs",
        ("lease - lease / 64", "lease"),
        "spends a block that has ended",
    ),
    (
        "a swap whose reply was lost is tried again",
        "limiter-log/src/batch.rs",
        (
            "wanted(calls, swap).await?.0",
            "wanted(calls, swap).await.is_ok_and(|swapped| swapped.0)",
        ),
        "entries are saved for",
    ),
    (
        "calls are answered although another process was faster",
        "limiter-log/src/batch.rs",
        (
            "wanted(calls, swap).await?.0",
            "wanted(calls, swap).await.is_ok()",
        ),
        "was not saved",
    ),
    (
        "a row may go while its entries count",
        "limiter-log/src/batch.rs",
        (
            "log.expires_at().unwrap_or(now).saturating_add(GRACE)",
            "log.newest().unwrap_or(now)",
        ),
        "a window of",
    ),
    (
        "an operation's own policy is forgotten",
        "limiter-log/src/call.rs",
        (
            "Op::new(self.mode, \"\", &self.policy)",
            "Op::new(self.mode, \"\", self.limiter_policy.as_ref().unwrap_or(&self.policy))",
        ),
        "although it fits",
    ),
];

/// Builds a copy of the sources in which the environment chooses the mistake.
#[test]
fn each_mistake_in_rust_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (mistake, file, (part, _), _) in IN_RUST {
        let text = fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains(part), "{mistake}: {file} has changed");
    }
    if env::var_os("LIMITER_TEST_ALL").is_none() {
        return;
    }
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
    _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with('.') && name != "target" && name != "programs" {
            let copied = Command::new("cp")
                .arg("-rp")
                .arg(entry.path())
                .arg(&copy)
                .status();
            assert!(copied.unwrap().success());
        }
    }
    for (number, (_, file, (part, other), _)) in IN_RUST.iter().enumerate() {
        let text = fs::read_to_string(copy.join(file)).unwrap();
        let is_made = format!("std::env::var_os(\"MISTAKE\").is_some_and(|n| n == \"{number}\")");
        let choice = format!("(if {is_made} {{ {other} }} else {{ {part} }})");
        fs::write(copy.join(file), text.replace(part, &choice)).unwrap();
    }
    let run = |mistake: &str| {
        let arguments = [
            "test",
            "--package",
            "sim",
            "--test",
            "it",
            "--",
            "keep_the_promises",
        ];
        let mut command = Command::new(env!("CARGO"));
        let command = command
            .args(arguments)
            .current_dir(&copy)
            .env("MISTAKE", mistake);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("target");
        let output = command.env("CARGO_TARGET_DIR", target).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text.into_owned())
    };
    let (is_well, text) = run("none");
    assert!(is_well, "without a mistake: {text}");
    let mut missed = Vec::new();
    for (number, (mistake, _, _, rule)) in IN_RUST.iter().enumerate() {
        let (is_well, text) = run(&number.to_string());
        let found = text.lines().find(|line| line.contains(rule));
        println!("{mistake}: {found:?}");
        if is_well || found.is_none() {
            missed.push(*mistake);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
