//! L1: keys and names that a store might confuse with one another, or with something of its own.

use limiter_core::Name;

/// Three logs, by their names and keys.
#[derive(Clone, Debug)]
pub(crate) struct Trio {
    pub(crate) names: [Name; 3],
    pub(crate) keys: [Vec<u8>; 3],
}

/// Three keys under one name. `prefix` is text that no other key begins with, `number` one in digits.
pub(crate) fn keys(prefix: &str, number: &str, huge: bool) -> Vec<[Vec<u8>; 3]> {
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
        [key("\u{e4}".as_bytes()), key("a\u{308}".as_bytes()), key("\u{c4}".as_bytes())],
        [key(b"a "), key(b"a"), key(b" a")],
        [key(b"a\t"), key(b"a"), key(b"a\n")],
        [key(b"*"), key(b"?"), key(b"[a]")],
        [key(b"_"), key(b"%"), key(b"a")],
        [key(b"'"), key(b"\""), key(b"''")],
        [key(b"\x80"), key(b"\xc2\x80"), key(b"\xc2")],
        [of(252, b'a'), of(252, b'b'), of(253, b'a')],
        [of(1 << 10, b'a'), of(1 << 10, b'b'), of((1 << 10) - 1, b'a')],
        // The digits of one number: a store that converts keys to numbers confuses them.
        [digits(number.to_owned()), digits(format!("0{number}")), digits(format!("{number}.0"))],
        [digits(format!("+{number}")), digits(format!("-{number}")), digits(format!(" {number}"))],
        [digits(format!("{number}{number}1")), digits(format!("{number}{number}2")), digits(format!("{number}e0"))],
    ];
    if huge {
        keys.push([of(1 << 16, b'a'), of(1 << 16, b'b'), of((1 << 16) - 1, b'a')]);
        keys.push([of(1 << 20, b'a'), of(1 << 20, b'b'), of((1 << 20) - 1, b'a')]);
    }
    keys
}

/// Names and keys that a store might join to the same text, three at a time.
pub(crate) fn names(prefix: &str, key: &str) -> Vec<Trio> {
    let trio = |logs: [(&str, &str); 3]| Trio {
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
        // An empty key, under a name that nobody else has.
        trio([(prefix, ""), (prefix, key), ("conformance", key)]),
    ]
}
