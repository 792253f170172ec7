//! Keys, times and durations as readable text.

use std::fmt::Write;

use jiff::tz::TimeZone;
use limiter_core::Timestamp;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Times below 100,000,000 s are treated as relative times, not as dates.
const FIRST_DATE: u64 = 100_000_000 * SECOND;

/// Returns a key as printable text of at most `most` characters, without white space at its ends.
#[must_use]
pub(crate) fn key(key: &[u8], most: usize) -> String {
    // A character takes at most four bytes and prints as at least one character.
    let start = &key[..key.len().min(4 * most + 4)];
    let mut text: String = String::from_utf8_lossy(start)
        .chars()
        .flat_map(|c| {
            let printable = !c.is_control() && (c == ' ' || !c.is_whitespace());
            let escaped = (!printable).then(|| c.escape_default());
            escaped.into_iter().flatten().chain(printable.then_some(c))
        })
        .take(most + 1)
        .collect();
    if text.is_empty() {
        return "(empty)".to_owned();
    }
    if text.starts_with(' ') || text.ends_with(' ') {
        text = format!("'{text}'");
    }
    if text.chars().count() > most || start.len() < key.len() {
        text = text.chars().take(most.saturating_sub(1)).chain(['…']).collect();
    }
    text
}

/// Formats a number in groups of three digits.
#[must_use]
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of requests.
#[must_use]
pub(crate) fn requests(count: u64) -> String {
    format!("{} request{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats a duration in its two largest relevant units: `3 d 11 h`, `1.5 s`.
#[must_use]
pub(crate) fn duration(micros: u64) -> String {
    if micros < 1_000 {
        return format!("{micros} µs");
    }
    if micros < SECOND {
        return format!("{} ms", decimals(micros, 1_000));
    }
    if micros < 60 * SECOND {
        return format!("{} s", decimals(micros, SECOND));
    }
    let seconds = micros / SECOND;
    let (first, second) = match seconds {
        0..3_600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        3_600..86_400 => ((seconds / 3_600, "h"), (seconds % 3_600 / 60, "min")),
        _ => ((seconds / 86_400, "d"), (seconds % 86_400 / 3_600, "h")),
    };
    let mut text = format!("{} {}", first.0, first.1);
    if second.0 > 0 {
        let _ = write!(text, " {} {}", second.0, second.1);
    }
    text
}

fn decimals(micros: u64, unit: u64) -> String {
    let text = format!("{}.{:03}", micros / unit, micros % unit * 1_000 / unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns whether a time is relative to 0 rather than a date.
#[must_use]
pub(crate) fn is_relative(at: Timestamp) -> bool {
    at.as_micros() < FIRST_DATE
}

/// The precision of a printed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Month and year.
    Month,
    /// Day and month.
    Day,
    /// Hour and minute.
    Minute,
    /// Hour, minute and second.
    Second,
    /// Seconds with decimals.
    Micro,
}

/// Formats a time in UTC to this precision, or a relative time as a duration.
#[must_use]
pub(crate) fn clock(at: Timestamp, precision: Precision, relative: bool) -> String {
    if relative {
        return if at.as_micros() == 0 { "0".to_owned() } else { relative_clock(at.as_micros()) };
    }
    match precision {
        Precision::Month => strftime(at, "%b %Y"),
        Precision::Day => strftime(at, "%-d %b"),
        Precision::Minute => strftime(at, "%H:%M"),
        Precision::Second => strftime(at, "%H:%M:%S"),
        Precision::Micro => strftime(at, "%H:%M:%S%.f"),
    }
}

fn relative_clock(micros: u64) -> String {
    if micros < 60 * SECOND || !micros.is_multiple_of(SECOND) {
        let (unit, name) = match micros {
            0..1_000 => (1, "µs"),
            1_000..SECOND => (1_000, "ms"),
            _ => (SECOND, "s"),
        };
        let digits = format!("{:06}", micros % unit * (SECOND / unit));
        let text = format!("{}.{digits}", micros / unit);
        return format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let seconds = micros % DAY / SECOND;
    let parts = [(micros / DAY, "d"), (seconds / 3_600, "h"), (seconds % 3_600 / 60, "m"), (seconds % 60, "s")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}"));
    parts.collect::<Vec<_>>().join(" ")
}

/// Formats date and time as `17 May 2015 10:05:03 UTC`, or a relative time.
#[must_use]
pub(crate) fn date_time(at: Timestamp, relative: bool) -> String {
    if relative { clock(at, Precision::Second, true) } else { strftime(at, "%-d %b %Y %H:%M:%S UTC") }
}

/// Formats the date as `17 May 2015`.
#[must_use]
pub(crate) fn date(at: Timestamp) -> String {
    strftime(at, "%-d %b %Y")
}

fn strftime(at: Timestamp, format: &str) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    time.to_zoned(TimeZone::UTC).strftime(format).to_string()
}
