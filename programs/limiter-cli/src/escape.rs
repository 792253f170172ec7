//! Reversible text forms of keys that fit on one line.

use std::fmt::Write;

/// Returns a key as text. Printable UTF-8 stays as it is. A backslash, other bytes, and spaces at the ends become
/// `\\`, `\n`, `\r`, `\t` or `\xNN`. The empty key becomes `''`.
///
/// ```
/// use limiter_cli::escape::{escape, unescape};
/// assert_eq!(escape("Zoë 7".as_bytes()), "Zoë 7");
/// assert_eq!(escape(b"a\n\xff\\ "), r"a\n\xff\\\x20");
/// assert_eq!(unescape(br"a\n\xff\\\x20")?, b"a\n\xff\\ ");
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn escape(key: &[u8]) -> String {
    match key {
        b"" => return "''".to_owned(),
        b"''" => return r"\x27\x27".to_owned(),
        _ => {}
    }
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for char in chunk.valid().chars() {
            // The debug form leaves printable characters unchanged, except quotes.
            if char.escape_debug().len() == 1 || matches!(char, '"' | '\'') {
                text.push(char);
            } else {
                let _ = write!(
                    text,
                    "{}",
                    char.encode_utf8(&mut [0; 4]).as_bytes().escape_ascii()
                );
            }
        }
        let _ = write!(text, "{}", chunk.invalid().escape_ascii());
    }
    if text.ends_with(' ') {
        text.replace_range(text.len() - 1.., r"\x20");
    }
    if text.starts_with(' ') {
        text.replace_range(..1, r"\x20");
    }
    text
}

/// Returns the key that [`escape`] printed as this text. Text without a backslash is the key.
///
/// # Errors
/// If a backslash is not followed by a known escape.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut key = Vec::with_capacity(text.len());
    if text == b"''" {
        return Ok(key);
    }
    let mut rest = text;
    while let Some((byte, tail)) = rest.split_first() {
        if *byte != b'\\' {
            key.push(*byte);
            rest = tail;
            continue;
        }
        let (byte, tail) = match tail {
            [b'\\', tail @ ..] => (Some(b'\\'), tail),
            [b'n', tail @ ..] => (Some(b'\n'), tail),
            [b'r', tail @ ..] => (Some(b'\r'), tail),
            [b't', tail @ ..] => (Some(b'\t'), tail),
            [b'x', high, low, tail @ ..] => (hex_byte(*high, *low), tail),
            _ => (None, tail),
        };
        key.push(byte.ok_or_else(|| unknown_escape(rest))?);
        rest = tail;
    }
    Ok(key)
}

fn unknown_escape(rest: &[u8]) -> String {
    let found = String::from_utf8_lossy(&rest[..rest.len().min(4)])
        .escape_debug()
        .to_string()
        .replace(r"\\", r"\");
    format!(
        r"after a backslash expected \, n, r, t or x and two hexadecimal digits, found {found} (a backslash is \\)"
    )
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_keys_round_trip() {
        let mut keys: Vec<Vec<u8>> = (0..=255_u8)
            .flat_map(|b| [vec![b], vec![b'a', b, b'b'], vec![b, b, b]])
            .collect();
        keys.extend(
            [
                "",
                "''",
                "'",
                "\u{202e}x",
                "e\u{301}",
                "\u{301}",
                "日本",
                r"\x20",
                " a b ",
            ]
            .map(Into::into),
        );
        keys.push(b"\xe6\x97".to_vec());
        let mut seen = std::collections::HashSet::new();
        for key in keys {
            let text = escape(&key);
            assert!(
                !text.is_empty() && !text.contains(char::is_control) && text.trim() == text,
                "{text:?}"
            );
            assert_eq!(unescape(text.as_bytes()).unwrap(), key, "{text}");
            seen.insert(text);
        }
        assert!(
            seen.contains("日本") && seen.contains(r"\xe2\x80\xaex") && seen.contains(r"\xe6\x97")
        );
        assert!(seen.contains(r"\\x20") && seen.contains(r"\x20a b\x20"));
    }

    #[test]
    fn malformed_escapes_are_errors() {
        for text in [r"\", r"a\q", r"\x", r"\x1", r"\xg0", r"\x+1", "\\\u{7f}"] {
            let error = unescape(text.as_bytes()).unwrap_err();
            assert!(error.starts_with("after a backslash expected"), "{error}");
        }
    }
}
