//! Keys, times and durations as readable text.

use indicatif::HumanCount;
use jiff::fmt::friendly::SpanPrinter;
use jiff::tz::TimeZone;
use jiff::{RoundMode, Span, SpanRound, Unit};
use limiter_core::Timestamp;

use crate::escape::escape;

const SECOND: u64 = 1_000_000;

/// Times below 100,000,000 s are treated as relative times, not as dates.
const FIRST_DATE: u64 = 100_000_000 * SECOND;

/// Returns a key's printable form, cut to at most `most` characters.
pub(crate) fn key(key: &[u8], most: usize) -> String {
    // A character takes at most four bytes and prints as at least one character.
    let start = &key[..key.len().min(4 * most + 4)];
    let mut text = escape(start);
    if let Some((cut, _)) = text.char_indices().nth(most.saturating_sub(1))
        && (start.len() < key.len() || text.chars().count() > most)
    {
        text.truncate(cut);
        text.push('…');
    }
    text
}

/// Formats a number in groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a number of requests.
pub(crate) fn requests(count: u64) -> String {
    format!(
        "{} request{}",
        grouped(count),
        if count == 1 { "" } else { "s" }
    )
}

/// Formats a duration in its two largest units: `3d 11h`, `1s 500ms`.
pub(crate) fn duration(micros: u64) -> String {
    let smallest = match micros / SECOND {
        0 => Unit::Microsecond,
        1..60 => Unit::Millisecond,
        60..3_600 => Unit::Second,
        3_600..86_400 => Unit::Minute,
        _ => Unit::Hour,
    };
    span(micros, smallest)
}

fn span(micros: u64, smallest: Unit) -> String {
    let units = SpanRound::new()
        .largest(Unit::Day)
        .smallest(smallest)
        .mode(RoundMode::Trunc)
        .days_are_24_hours();
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    let span = Span::new()
        .try_microseconds(micros)
        .and_then(|span| span.round(units));
    // No time of a limiter is too long for a span.
    span.map_or_else(
        |_| "forever".to_owned(),
        |span| SpanPrinter::new().span_to_string(&span),
    )
}

/// Returns `true` if a time is relative to 0 rather than a date.
pub(crate) fn is_relative(at: Timestamp) -> bool {
    at.as_micros() < FIRST_DATE
}

/// Formats a time in UTC, or a relative time as a duration.
pub(crate) fn clock(at: Timestamp, format: &str, relative: bool) -> String {
    match at.as_micros() {
        0 if relative => "0".to_owned(),
        micros if relative => span(micros, Unit::Microsecond),
        _ => strftime(at, format),
    }
}

/// Formats date and time as `17 May 2015 10:05:03 UTC`, or a relative time.
pub(crate) fn date_time(at: Timestamp, relative: bool) -> String {
    clock(at, "%-d %b %Y %H:%M:%S UTC", relative)
}

fn strftime(at: Timestamp, format: &str) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    time.to_zoned_datetime(TimeZone::UTC)
        .strftime(format)
        .to_string()
}
