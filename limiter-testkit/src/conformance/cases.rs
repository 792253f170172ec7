//! The scripts at given times. At least one covers each sentence of the contract that a sequence of calls can break.

use limiter_core::Name;

use super::caller::StoreKeys;
use super::case::CaseLimiter;
use super::script::{self, Script};
use super::session::Session;
use super::suite::run::Run;

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
            run.count_script(result.map_err(|mismatch| script.cited(mismatch)));
        }
        if !run.mismatches.is_empty() {
            return;
        }
    }
    similar_keys(run).await;
}

/// Three logs, each with a name and a key.
#[derive(Clone, Debug)]
struct ThreeLogs {
    names: [Name; 3],
    keys: [Vec<u8>; 3],
}

/// Returns sets of three keys with one name. No other key starts with `prefix`; `number` consists of digits.
fn keys(prefix: &str, number: &str, huge: bool) -> Vec<[Vec<u8>; 3]> {
    let key = |end: &[u8]| [prefix.as_bytes(), end].concat();
    let of = |len: usize, last: u8| [key(&vec![b'k'; len]), vec![last]].concat();
    let digits = |text: String| text.into_bytes();
    let mut keys = vec![
        [key(b""), key(b":"), key(b"::")],
        [key(b"/"), key(b"//"), key(b"/./")],
        [key(b"%"), key(b"%25"), key(b"%2525")],
        [key(b"{a}"), key(b"{a}b"), key(b"{}{a}")],
        [key(b"\0"), key(b"\0\0"), key(b"")],
        [key(b"a\0b"), key(b"a\0c"), key(b"a")],
        [key(b"\xff"), key(b"\xfe"), key("\u{fffd}".as_bytes())],
        [key(b"\r\n"), key(b"\n"), key(b"\\n")],
        [key(b"A"), key(b"a"), key("a\u{308}".as_bytes())],
        [
            key("\u{e4}".as_bytes()),
            key("a\u{308}".as_bytes()),
            key("\u{c4}".as_bytes()),
        ],
        [key(b"a "), key(b"a"), key(b" a")],
        [key(b"a\t"), key(b"a"), key(b"a\n")],
        [key(b"*"), key(b"?"), key(b"[a]")],
        [key(b"_"), key(b"%"), key(b"a")],
        [key(b"'"), key(b"\""), key(b"''")],
        [key(b"\x80"), key(b"\xc2\x80"), key(b"\xc2")],
        [of(252, b'a'), of(252, b'b'), of(253, b'a')],
        [
            of(1 << 10, b'a'),
            of(1 << 10, b'b'),
            of((1 << 10) - 1, b'a'),
        ],
        // Spellings of one number: a store that converts keys to numbers confuses them.
        [
            digits(number.to_owned()),
            digits(format!("0{number}")),
            digits(format!("{number}.0")),
        ],
        [
            digits(format!("+{number}")),
            digits(format!("-{number}")),
            digits(format!(" {number}")),
        ],
        [
            digits(format!("{number}{number}1")),
            digits(format!("{number}{number}2")),
            digits(format!("{number}e0")),
        ],
    ];
    if huge {
        keys.push([
            of(1 << 16, b'a'),
            of(1 << 16, b'b'),
            of((1 << 16) - 1, b'a'),
        ]);
        keys.push([
            of(1 << 20, b'a'),
            of(1 << 20, b'b'),
            of((1 << 20) - 1, b'a'),
        ]);
    }
    keys
}

/// Returns sets of three logs whose name and key a store might join to the same text.
fn names(prefix: &str, key: &str) -> Vec<ThreeLogs> {
    let trio = |logs: [(&str, &str); 3]| ThreeLogs {
        names: logs.map(|(name, _)| Name::new(name)),
        keys: logs.map(|(_, key)| key.as_bytes().to_vec()),
    };
    let (joined, colon) = (format!("a:{key}"), format!(":{key}"));
    let long = "n".repeat(300);
    let (long_a, long_b) = (format!("{long}a"), format!("{long}b"));
    vec![
        trio([("", &joined), ("a", key), ("a:", key)]),
        trio([("a", &colon), ("a:", key), ("a%3A", key)]),
        trio([("a}", key), ("a{", key), ("{a}", key)]),
        trio([("A", key), ("a", key), ("default", key)]),
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
    script.case.limiters = (0..3)
        .map(|name| CaseLimiter { name, policy: None })
        .collect();
    let number: String = run
        .new_key()
        .bytes()
        .map(|byte| char::from(b'1' + byte % 9))
        .collect();
    for keys in keys(&run.new_key(), &number, run.suite.sizes.huge_keys) {
        replay(
            run,
            &script,
            &ThreeLogs {
                names: [Name::new("conformance"); 3],
                keys,
            },
        )
        .await;
    }
    for trio in names(&run.new_name(), &run.new_key()) {
        replay(run, &script, &trio).await;
    }
}

async fn replay(run: &mut Run<'_>, script: &Script, trio: &ThreeLogs) {
    let show = |i: usize| {
        let key = &trio.keys[i];
        let more = if key.len() > 64 {
            format!(" and {} more bytes", key.len() - 64)
        } else {
            String::new()
        };
        format!(
            "{:?}/\"{}\"{more}",
            trio.names[i].as_str(),
            key[..key.len().min(64)].escape_ascii()
        )
    };
    let title = format!(
        "three logs, by name and key: {}, {}, {}",
        show(0),
        show(1),
        show(2)
    );
    let mut store_keys = StoreKeys::new(0..3, |key| trio.keys[usize::from(key)].clone());
    store_keys.names = trio.names.to_vec();
    let mut session = Session::on(run.handles.clone(), store_keys, &script.case);
    let result = session
        .replay(&script.case)
        .await
        .map_err(|mismatch| script.cited(mismatch).titled(title));
    run.count_script(result);
}
