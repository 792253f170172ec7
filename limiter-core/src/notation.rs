//! Limits, windows and policies as text: `100/60s`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, excerpt};
use crate::limit::Limit;
use crate::parse::{self, ParseError, Reason, UNITS};
use crate::policy::Policy;
use crate::time::Window;

fn invalid(what: &str, text: &str, error: ParseError) -> Error {
    // Spans start and end at character boundaries, because separators and units are whole characters.
    let found = text.get(error.found.start..error.found.end).unwrap_or(text);
    let reason = match error.reason {
        Reason::OutOfRange(error) => error.to_string(),
        reason if found.len() == text.len() => reason.expected().to_owned(),
        reason => format!("{}, found {}", reason.expected(), excerpt(found)),
    };
    Error::new(ErrorKind::InvalidLimit, format!("{what} {}: {reason}", excerpt(text)))
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

    /// Parses `"60s"`, `"1 minute"`, `"minute"` or `"250ms"`.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse::window(text.as_bytes()).map_err(|error| invalid("window", text, error))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.max(), self.window())
    }
}

impl FromStr for Limit {
    type Err = Error;

    /// Parses `"100/60s"` or `"100 per minute"`.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse::limit(text.as_bytes()).map_err(|error| invalid("limit", text, error))
    }
}

impl fmt::Display for Policy {
    /// Prints the limits separated by `", "`. The name and the counting mode are not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, limit) in self.limits().iter().enumerate() {
            write!(f, "{}{limit}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = Error;

    /// Parses limits separated by commas, such as `"3/1s, 100/1h"`.
    ///
    /// The counting mode is [`Counting::Admitted`](crate::Counting::Admitted); [`Policy::with_counting`] changes it.
    fn from_str(text: &str) -> Result<Self, Error> {
        let limits = parse::limits(text.as_bytes()).map_err(|error| invalid("policy", text, error))?;
        Ok(Self::from_checked(limits))
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
            ("1/μs", 1, 1, "1/1us"),
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
            ("", "limit \"\": expected MAX/WINDOW"),
            ("3", "expected MAX/WINDOW"),
            ("0/60s", "limit of 0 is out of range, expected 1 to"),
            ("3/0s", "window of 0 µs is out of range"),
            ("3/1ns", "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found \"1ns\""),
            ("-1/s", "expected a whole number, found \"-1\""),
            ("+1/s", "expected a whole number, found \"+1\""),
            ("1.5/s", "expected a whole number, found \"1.5\""),
            ("3/", "expected a whole number and a unit"),
            ("3/1.5s", "expected a whole number and a unit"),
            ("/s", "expected a whole number, found \"\""),
            ("3/s/s", "expected a whole number and a unit"),
            ("18446744073709551616/s", "out of range"),
            ("18446744073709551615/s", "out of range"),
            ("4503599627370497/s", "out of range"),
            ("1/9007199254740992us", "out of range"),
            ("1/18446744073709551616us", "out of range"),
            ("1/18446744073709551615d", "out of range"),
            ("٣/s", "expected a whole number, found \"٣\""),
            ("1/œ", "expected a whole number and a unit"),
        ] {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidLimit);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let long = "9".repeat(100_000);
        for text in [long.clone(), format!("{long}x/s"), format!("{long}/s"), format!("1/{long}"), format!("{long},")] {
            assert!(text.parse::<Policy>().unwrap_err().to_string().len() < 300);
        }
    }

    #[test]
    fn policies_parse_and_print() {
        let policy: Policy = "3/1s,5/5s".parse().unwrap();
        assert_eq!(policy.to_string(), "3/1s, 5/5s");
        assert_eq!(["1/1s"; 8].join(", ").parse::<Policy>().unwrap().limits().len(), 8);
        for (text, part) in [
            ("3/1s,", "policy \"3/1s,\": expected MAX/WINDOW, as in 100/60s or 100 per minute, found \"\""),
            (&["1/1s"; 9].join(","), "expected at most 8 limits, found \"1/1s\""),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn constants_are_checked_by_the_compiler() {
        const STRICT: Policy = crate::policy!("3/1s, 100 per hour").with_counting(crate::Counting::Attempts);
        let parsed = "3/1s,100/1h".parse::<Policy>().unwrap().with_counting(crate::Counting::Attempts);
        assert_eq!(STRICT, parsed);
        const LIMIT: Limit = match Limit::per_minute(5) {
            Ok(limit) => limit,
            Err(_) => panic!(),
        };
        const POLICY: Policy = Policy::from_limits([LIMIT, LIMIT]);
        assert_eq!(POLICY, "5/1m, 5/1m".parse().unwrap());
    }
}
