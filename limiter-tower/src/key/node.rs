//! One address in a list of proxies.

use std::net::{IpAddr, Ipv6Addr};

/// Reads an address with or without a port, brackets, quotes and a zone: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]:80`, `"[fe80::1%eth0]"`. `None` for anything else, such as `unknown` or `_hidden`.
///
/// A zone is dropped: it means something only on the machine that wrote it. An IPv4-mapped address is IPv4.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(unquoted(text)?).ok()?;
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (port.is_empty() || is_port(port.strip_prefix(':')?)).then(|| ipv6(address))??
        }
        None if text.bytes().filter(|byte| *byte == b':').count() > 1 => ipv6(text)?,
        None => match text.split_once(':') {
            Some((address, port)) if is_port(port) => IpAddr::V4(address.parse().ok()?),
            Some(_) => return None,
            None => IpAddr::V4(text.parse().ok()?),
        },
    };
    Some(address.to_canonical())
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text
        .split_once('%')
        .map_or((text, "zone"), |(address, zone)| (address, zone));
    let is_zone = !zone.is_empty()
        && zone
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte));
    let address: Ipv6Addr = address.parse().ok()?;
    is_zone.then_some(IpAddr::V6(address))
}

/// Up to five digits, or RFC 7239's obfuscated port.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Removes quotes. A backslash within them escapes no character of an address.
fn unquoted(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'"', inner @ .., b'"'] => {
            (!inner.iter().any(|byte| matches!(byte, b'"' | b'\\'))).then_some(inner)
        }
        _ => Some(text),
    }
}
