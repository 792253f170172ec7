//! The field `Forwarded` (RFC 7239), read from the right.
//!
//! Read from the left, a quote that the client opened and never closed would swallow the proxies' elements: `for="evil,
//! for=192.0.2.1`. Read from the right, the proxies' elements are complete before the client's part is reached.

use std::net::IpAddr;

use super::node;

/// Returns a line's elements from the right. A malformed element is returned unchanged and ends the line.
pub(super) fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let elements = Pieces {
        rest: Some(line),
        separator: b',',
    }
    .map(|piece| piece.unwrap_or_else(|malformed| malformed));
    elements.filter(|element| !element.trim_ascii().is_empty())
}

/// Returns the address in `for=` of an element. `None` if it is missing, doubled, hidden or malformed.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in (Pieces {
        rest: Some(element),
        separator: b';',
    }) {
        let pair = pair.ok()?.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for")
            && found.replace(&pair[equals + 1..]).is_some()
        {
            return None;
        }
    }
    node::address(found?)
}

/// The pieces between the separators that are not within quotes, from the right. A piece whose quote is not closed is an
/// error and the last one.
struct Pieces<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<&'a [u8], &'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.rest.take()?;
        let mut quoted = false;
        for (i, byte) in text.iter().enumerate().rev() {
            match byte {
                b'"' if quoted => {
                    let backslashes = text[..i]
                        .iter()
                        .rev()
                        .take_while(|byte| **byte == b'\\')
                        .count();
                    quoted = !backslashes.is_multiple_of(2);
                }
                b'"' => quoted = true,
                _ if *byte == self.separator && !quoted => {
                    self.rest = Some(&text[..i]);
                    return Some(Ok(&text[i + 1..]));
                }
                _ => {}
            }
        }
        Some(if quoted { Err(text) } else { Ok(text) })
    }
}
