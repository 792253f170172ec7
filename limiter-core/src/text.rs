//! Limits, windows and policies as text.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Limit, Policy, Window};

/// Units by length in microseconds, longest first; the first name is the one that is printed.
const UNITS: [(u64, &[&str]); 6] = [
    (86_400_000_000, &["d", "day", "days"]),
    (3_600_000_000, &["h", "hour", "hours", "hr"]),
    (60_000_000, &["m", "minute", "minutes", "min"]),
    (1_000_000, &["s", "second", "seconds", "sec"]),
    (1_000, &["ms", "millisecond", "milliseconds"]),
    (1, &["us", "µs", "μs", "microsecond", "microseconds"]),
];

/// The beginning of a text, as errors quote it.
fn excerpt(text: &str) -> String {
    let shown: String = text.chars().take(60).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", shown.escape_debug())
}

fn invalid(what: &str, text: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidLimit, format!("{what} {}: {why}", excerpt(text)))
}

fn whole_number(text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("expected a whole number, found {}", excerpt(text)));
    }
    text.parse().map_err(|_| "the number is out of range".to_owned())
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_micros();
        let (length, names) = UNITS.iter().find(|(length, _)| micros.is_multiple_of(*length)).unwrap_or(&UNITS[5]);
        write!(f, "{}{}", micros / length, names[0])
    }
}

impl FromStr for Window {
    type Err = Error;

    /// `"60s"`, `"1 minute"`, `"minute"`, `"250ms"`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = (&trimmed[..digits], trimmed[digits..].trim_start());
        let count = match count {
            "" => 1,
            count => whole_number(count).map_err(|why| invalid("window", text, why))?,
        };
        let Some((length, _)) = UNITS.iter().find(|(_, names)| names.contains(&unit)) else {
            let why = "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s";
            return Err(invalid("window", text, why));
        };
        let micros = count.checked_mul(*length).ok_or_else(|| invalid("window", text, "the window is out of range"))?;
        Self::from_micros(micros).map_err(|e| invalid("window", text, e))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.max(), self.window())
    }
}

impl FromStr for Limit {
    type Err = Error;

    /// `"100/60s"` or `"100 per minute"`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (max, window) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or_else(|| invalid("limit", text, "expected MAX/WINDOW, as in 100/60s or 100 per minute"))?;
        let max = whole_number(max.trim()).map_err(|why| invalid("limit", text, why))?;
        let window = window.parse().map_err(|e| invalid("limit", text, e))?;
        Self::over(max, window).map_err(|e| invalid("limit", text, e))
    }
}

impl fmt::Display for Policy {
    /// The limits, separated by `", "`. The name and what is counted are not part of the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, limit) in self.limits().iter().enumerate() {
            write!(f, "{}{limit}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = Error;

    /// Limits separated by commas: `"3/1s, 100/1h"`. Counts admitted cost; change it with [`Policy::counting`].
    fn from_str(text: &str) -> Result<Self, Error> {
        let limits = text.split(',').map(|limit| limit.trim().parse());
        Self::new(limits.collect::<Result<Vec<Limit>, Error>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_parse_and_print() {
        for (text, max, micros, printed) in [
            ("100/60s", 100, 60_000_000, "100/1m"),
            ("10 per second", 10, 1_000_000, "10/1s"),
            ("5 per 10 minutes", 5, 600_000_000, "5/10m"),
            (" 7 / 250 ms ", 7, 250_000, "7/250ms"),
            ("1/us", 1, 1, "1/1us"),
            ("1/µs", 1, 1, "1/1us"),
            ("3/90s", 3, 90_000_000, "3/90s"),
            ("70000/day", 70_000, 86_400_000_000, "70000/1d"),
            ("4503599627370496/9007199254740991us", 1 << 52, (1 << 53) - 1, "4503599627370496/9007199254740991us"),
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!((limit.max(), limit.window().as_micros()), (max, micros), "{text}");
            assert_eq!(limit.to_string(), printed);
            assert_eq!(printed.parse::<Limit>().unwrap(), limit);
        }
    }

    #[test]
    fn malformed_limits_say_what_was_expected() {
        for (text, part) in [
            ("", "expected MAX/WINDOW"),
            ("3", "expected MAX/WINDOW"),
            ("0/60s", "limit of 0 is out of range, expected 1 to"),
            ("3/0s", "window of 0 µs is out of range"),
            ("3/1ns", "expected a whole number and a unit of us, ms, s, m, h or d"),
            ("-1/s", "expected a whole number, found \"-1\""),
            ("+1/s", "expected a whole number, found \"+1\""),
            ("1.5/s", "expected a whole number, found \"1.5\""),
            ("3/", "expected a whole number and a unit"),
            ("3/1.5s", "expected a whole number and a unit"),
            ("/s", "expected a whole number, found \"\""),
            ("3/s/s", "expected a whole number and a unit"),
            ("18446744073709551616/s", "out of range"),
            ("4503599627370497/s", "out of range"),
            ("1/9007199254740992us", "out of range"),
            ("1/18446744073709551616us", "out of range"),
            ("1/18446744073709551615d", "out of range"),
            ("٣/s", "expected a whole number"),
        ] {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidLimit);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let long = "9".repeat(100_000);
        assert!(long.parse::<Limit>().unwrap_err().to_string().len() < 200);
        assert!(format!("{long}x/s").parse::<Limit>().unwrap_err().to_string().len() < 300);
        assert!(format!("{long}/s").parse::<Limit>().unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn policies_parse_and_print() {
        let policy: Policy = "3/1s,5/5s".parse().unwrap();
        assert_eq!(policy.to_string(), "3/1s, 5/5s");
        assert!("3/1s,".parse::<Policy>().is_err());
        assert!(["1/1s"; 9].join(",").parse::<Policy>().is_err());
    }
}
