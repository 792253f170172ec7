//! Receipts as text.

use limiter_core::store::EntryId;
use limiter_core::{Receipt, Timestamp, Window};

/// Returns a receipt as text: the entry's id, its time, and how long it is kept.
pub(super) fn to_text(receipt: Receipt) -> String {
    let id = receipt.entry().as_u128();
    let at = receipt.at().as_micros();
    let window = receipt.window().as_micros();
    format!("{id:032x}-{at:014x}-{window:014x}")
}

/// Parses a receipt's text. `None` if it is malformed.
pub(super) fn parse(text: &str) -> Option<Receipt> {
    // Of a fixed width, so that a receipt that was cut off is malformed.
    let is_hex = |text: &str, digits| {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == digits && text.bytes().all(is_digit)
    };
    let (id, rest) = text.split_once('-').filter(|(id, _)| is_hex(id, 32))?;
    let (at, window) = rest
        .split_once('-')
        .filter(|(at, window)| is_hex(at, 14) && is_hex(window, 14))?;
    let micros = |text: &str| u64::from_str_radix(text, 16).ok();
    let id = EntryId::from_u128(u128::from_str_radix(id, 16).ok()?);
    let at = Timestamp::from_micros(micros(at)?).ok()?;
    let window = Window::from_micros(micros(window)?).ok()?;
    Some(Receipt::new(id, at, window))
}
