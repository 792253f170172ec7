//! The scripts at given times. At least one covers each sentence of the contract that a sequence of calls can break.

use limiter_core::{Name, WindowStore as _};

use super::caller::StoreKeys;
use super::mismatch::Mismatch;
use super::session::Session;
use super::suite::run::{Run, log};
use crate::case::CaseLimiter;
use crate::script::{self, Script};

pub(crate) async fn run(run: &mut Run<'_>) {
    for round in 0..run.suite.sizes.rounds_of_cases.min(3) {
        for script in run.scripts(script::GIVEN_TIMES) {
            let script = if round == 2 {
                script.counting_otherwise()
            } else {
                script
            };
            let mut session = Session::new(run, &script.case, 2 - round);
            // A failure in the first round identifies the step that went wrong.
            session.peeks = round == 0;
            let result = session.replay(&script.case).await;
            run.check(result.map_err(|mismatch| script.cited(mismatch)));
        }
        if !run.mismatches.is_empty() {
            return;
        }
    }
    similar_keys(run).await;
    nodes(run);
}

/// Checks that the store names the node of a log, if it names one.
fn nodes(run: &mut Run<'_>) {
    let keys = [run.new_key(), String::new()];
    let node = |key| run.store().node(log(key));
    if keys.iter().any(|key| node(key) != node(key)) {
        let text = "two calls of `WindowStore::node` for one log returned different names";
        run.fail(Mismatch::new("the node of a log", &[], text));
    }
}

/// Three logs, each with a name and a key.
type ThreeLogs = [(Name, Vec<u8>); 3];

/// Ends of keys that a store might confuse.
const ENDS: [[&[u8]; 3]; 16] = [
    [b"", b":", b"::"],
    [b"/", b"//", b"/./"],
    [b"%", b"%25", b"%2525"],
    [b"{a}", b"{a}b", b"{}{a}"],
    [b"\0", b"\0\0", b""],
    [b"a\0b", b"a\0c", b"a"],
    [b"\xff", b"\xfe", b"\xef\xbf\xbd"],
    [b"\r\n", b"\n", b"\\n"],
    [b"A", b"a", b"a\xcc\x88"],
    [b"\xc3\xa4", b"a\xcc\x88", b"\xc3\x84"],
    [b"a ", b"a", b" a"],
    [b"a\t", b"a", b"a\n"],
    [b"*", b"?", b"[a]"],
    [b"_", b"%", b"a"],
    [b"'", b"\"", b"''"],
    [b"\x80", b"\xc2\x80", b"\xc2"],
];

/// Returns sets of three keys with one name. No other key starts with `prefix`; `number` consists of digits.
fn keys(prefix: &str, number: &str, huge: bool) -> Vec<[Vec<u8>; 3]> {
    let key = |end: &[u8]| [prefix.as_bytes(), end].concat();
    let long = |len: usize| {
        let of = |len, last| [key(&vec![b'k'; len]), vec![last]].concat();
        [of(len, b'a'), of(len, b'b'), of(len - 1, b'a')]
    };
    let mut keys: Vec<_> = ENDS.iter().map(|ends| ends.map(key)).collect();
    keys.extend([100, 253, 1 << 10].map(long));
    // Spellings of one number: a store that converts keys to numbers confuses them.
    let n = number;
    let spellings = [
        [n.to_owned(), format!("0{n}"), format!("{n}.0")],
        [format!("+{n}"), format!("-{n}"), format!(" {n}")],
        [format!("{n}{n}1"), format!("{n}{n}2"), format!("{n}e0")],
    ];
    keys.extend(spellings.map(|spellings| spellings.map(String::into_bytes)));
    if huge {
        keys.extend([1 << 16, 1 << 20].map(long));
    }
    keys
}

/// Returns sets of three logs whose name and key a store might join to the same text.
fn names(prefix: &str, key: &str) -> Vec<ThreeLogs> {
    let trio = |logs: [(&str, &str); 3]| {
        logs.map(|(name, key)| (Name::new(name), key.as_bytes().to_vec()))
    };
    let joined = format!("a:{key}");
    let colon = format!(":{key}");
    let long = "n".repeat(300);
    let long_a = format!("{long}a");
    let long_b = format!("{long}b");
    vec![
        trio([("", &joined), ("a", key), ("a:", key)]),
        trio([("a", &colon), ("a:", key), ("a%3A", key)]),
        trio([("a}", key), ("a{", key), ("{a}", key)]),
        trio([("A", key), ("a", key), ("", key)]),
        trio([("", key), ("default", key), ("DEFAULT", key)]),
        trio([("*", key), ("a b", key), ("a\0b", key)]),
        trio([("a ", key), ("a", key), (" a", key)]),
        trio([("\u{e4}", key), ("a\u{308}", key), ("\u{c4}", key)]),
        trio([("1", key), ("01", key), ("1.0", key)]),
        trio([(&long_a, key), (&long_b, key), (&long, key)]),
        trio([("a/", key), ("a", &format!("/{key}")), ("", key)]),
        // Empty keys, under names that nothing else uses.
        trio([(prefix, ""), (&format!("{prefix}:2"), ""), (prefix, key)]),
    ]
}

const ON_THREE_LOGS: &str = "three logs | L1 | 2/10us
    for 0 1 2 0 1 2 0 (acquire 1 id $ key $ by $), for 0 1 2 (record 1 key $ by $), reset key 1 by 1,
    for 0 1 2 (acquire 1 key $ by $)";

/// L1: runs one script on keys, and under names, that a store might confuse with each other or with its internal keys.
async fn similar_keys(run: &mut Run<'_>) {
    let Some(mut script) = run.scripts(ON_THREE_LOGS).pop() else {
        return;
    };
    let limiter = |name| CaseLimiter { name, policy: None };
    script.case.limiters = [0, 1, 2].map(limiter).to_vec();
    let digit = |byte| char::from(b'1' + byte % 9);
    let number: String = run.new_key().bytes().map(digit).collect();
    let named = |keys: [Vec<u8>; 3]| keys.map(|key| (Name::new("conformance"), key));
    let keys = keys(&run.new_key(), &number, run.suite.sizes.huge_keys);
    let names = names(&run.new_name(), &run.new_key());
    for logs in keys.into_iter().map(named).chain(names) {
        let result = replay(run, &script, &logs).await;
        run.check(result);
    }
}

async fn replay(run: &Run<'_>, script: &Script, logs: &ThreeLogs) -> Result<u64, Mismatch> {
    let mut store_keys = StoreKeys::new(0..3, |key| logs[usize::from(key)].1.clone());
    store_keys.names = logs.iter().map(|(name, _)| *name).collect();
    let mut session = Session::on(run.handles.clone(), store_keys, &script.case);
    session.replay(&script.case).await.map_err(|mismatch| {
        let show = |(name, key): &(Name, Vec<u8>)| {
            let start = key[..key.len().min(64)].escape_ascii();
            format!(", {:?}/\"{start}\" of {} bytes", name.as_str(), key.len())
        };
        let logs: String = logs.iter().map(show).collect();
        let mismatch = script.cited(mismatch);
        mismatch.titled(format!("three logs, by name and key{logs}"))
    })
}
