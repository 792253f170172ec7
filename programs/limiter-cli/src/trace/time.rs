//! Parsers for times.

use jiff::fmt::strtime::BrokenDownTime;
use limiter_core::Timestamp;

const MICROS: u64 = 1_000_000;

/// Parses the column `at`: Unix or relative seconds, or RFC 3339. Rounds down to whole microseconds.
///
/// # Errors
/// States what was expected.
pub fn parse_at(text: &[u8]) -> Result<Timestamp, &'static str> {
    const EXPECTED: &str =
        "expected seconds, as in 1431857103.25, or RFC 3339, as in 2015-05-17T10:05:03Z";
    let text = text.trim_ascii();
    if !text.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
        let time: jiff::Timestamp = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(EXPECTED)?;
        return from_jiff(time);
    }
    let dot = text.iter().position(|&b| b == b'.');
    let (whole, decimals) = dot.map_or((text, None), |dot| (&text[..dot], Some(&text[dot + 1..])));
    if whole.is_empty() || decimals.is_some_and(<[u8]>::is_empty) {
        return Err(EXPECTED);
    }
    let decimals = decimals.unwrap_or_default();
    let (six, rest) = decimals.split_at(decimals.len().min(6));
    if !rest.iter().all(u8::is_ascii_digit) {
        return Err(EXPECTED);
    }
    let seconds = digits(whole).ok_or(EXPECTED)?;
    let fraction =
        digits(six).ok_or(EXPECTED)? * [MICROS, 100_000, 10_000, 1_000, 100, 10, 1][six.len()];
    in_range(u128::from(seconds) * u128::from(MICROS) + u128::from(fraction))
}

/// Parses digits as a saturating number. `None` if there is anything else.
fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0_u64, |sum, &b| {
        b.is_ascii_digit()
            .then(|| sum.saturating_mul(10).saturating_add(u64::from(b - b'0')))
    })
}

fn in_range(micros: u128) -> Result<Timestamp, &'static str> {
    u64::try_from(micros)
        .ok()
        .and_then(|micros| Timestamp::from_micros(micros).ok())
        .ok_or("expected a time before the year 2255 (2^53 microseconds)")
}

fn from_jiff(time: jiff::Timestamp) -> Result<Timestamp, &'static str> {
    let nanos =
        u128::try_from(time.as_nanosecond()).map_err(|_| "expected a time not before 1970")?;
    in_range(nanos / 1000)
}

/// The length of a time in an access log, for example `17/May/2015:10:05:03 +0000`.
pub(super) const ACCESS_LOG_TIME: usize = 26;

/// Parses a time in a web server's access log, for example `17/May/2015:10:05:03 +0000`.
///
/// # Errors
/// States what was expected.
pub fn parse_access_log_time(text: &[u8]) -> Result<Timestamp, &'static str> {
    const EXPECTED: &str = "expected a time as in 17/May/2015:10:05:03 +0000";
    if text.len() != ACCESS_LOG_TIME {
        return Err(EXPECTED);
    }
    let time =
        BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text).and_then(|time| time.to_timestamp());
    from_jiff(time.map_err(|_| EXPECTED)?)
}
