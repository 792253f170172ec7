//! Limits, windows and policies as text: `100/60s`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, excerpt};
use crate::policy::Policy;
use crate::policy::limit::Limit;
use crate::policy::parse::{self, ParseError, Reason, UNITS};
use crate::policy::time::Window;

fn invalid(what: &str, text: &str, error: ParseError<'_>) -> Error {
    let found = String::from_utf8_lossy(error.found);
    let reason = match error.reason {
        Reason::OutOfRange(error)
        | Reason::Resolution(error)
        | Reason::Lease(error)
        | Reason::TwoResolutions(error) => error.to_string(),
        reason if found.len() == text.len() => reason.expected().to_owned(),
        reason => format!("{}, found {}", reason.expected(), excerpt(&found)),
    };
    Error::new(
        ErrorKind::InvalidLimit,
        format!("{what} {}: {reason}", excerpt(text)),
    )
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_micros();
        let (length, names) = UNITS
            .iter()
            .find(|(length, _)| micros.is_multiple_of(*length))
            .unwrap_or(&UNITS[5]);
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
        write!(f, "{}/{}", self.max(), self.stated_window())?;
        for (sign, micros) in [("~", self.resolution_micros()), ("+", self.lease_micros())] {
            if micros > 0 {
                write!(f, "{sign}{}", Window::from_low_bits(micros))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Limit {
    type Err = Error;

    /// Parses `"100/60s"`, `"100 per minute"`, `"1000000/30d~1h"`, where `1h` is the resolution, or `"100000/1m+1s"`, where `1s` is
    /// the lease. A limit with both has the resolution first: `"9/1h~10s+1s"`.
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
        let (limits, count) =
            parse::limits(text.as_bytes()).map_err(|error| invalid("policy", text, error))?;
        Ok(Self::from_checked(limits, count))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn limits_parse_and_print() {
        for (text, max, micros, resolution, printed) in [
            ("100/60s", 100, 60_000_000, 0, "100/1m"),
            ("10 per second", 10, 1_000_000, 0, "10/1s"),
            ("5 per 10 minutes", 5, 600_000_000, 0, "5/10m"),
            (" 7 / 250 ms ", 7, 250_000, 0, "7/250ms"),
            ("1/us", 1, 1, 0, "1/1us"),
            ("1/µs", 1, 1, 0, "1/1us"),
            ("1/μs", 1, 1, 0, "1/1us"),
            ("3/90s", 3, 90_000_000, 0, "3/90s"),
            ("70000/day", 70_000, 86_400_000_000, 0, "70000/1d"),
            (
                "4503599627370496/9007199254740991us",
                1 << 52,
                (1 << 53) - 1,
                0,
                "4503599627370496/9007199254740991us",
            ),
            ("1/1us~1us", 1, 1, 1, "1/1us~1us"),
            ("1/1s~10us", 1, 1_000_000, 10, "1/1s~10us"),
            ("1/1s~100 microseconds", 1, 1_000_000, 100, "1/1s~100us"),
            ("1/1s~1ms", 1, 1_000_000, 1_000, "1/1s~1ms"),
            ("1/1s~10ms", 1, 1_000_000, 10_000, "1/1s~10ms"),
            ("1/1s~100ms", 1, 1_000_000, 100_000, "1/1s~100ms"),
            (
                "1000 per hour ~ second",
                1_000,
                3_600_000_000,
                1_000_000,
                "1000/1h~1s",
            ),
            ("1/1h~10s", 1, 3_600_000_000, 10_000_000, "1/1h~10s"),
            (
                "1000/1h ~ 60s",
                1_000,
                3_600_000_000,
                60_000_000,
                "1000/1h~1m",
            ),
            ("1/1h~10m", 1, 3_600_000_000, 600_000_000, "1/1h~10m"),
            (
                "1000000/30d~1h",
                1_000_000,
                2_592_000_000_000,
                3_600_000_000,
                "1000000/30d~1h",
            ),
            ("1/30d~6h", 1, 2_592_000_000_000, 21_600_000_000, "1/30d~6h"),
            (
                "1/9007199254740991us~24h",
                1,
                (1 << 53) - 1,
                86_400_000_000,
                "1/9007199254740991us~1d",
            ),
        ] {
            let (limit, resolution): (Limit, _) =
                (text.parse().unwrap(), Duration::from_micros(resolution));
            assert_eq!(
                (limit.max(), limit.window().as_micros()),
                (max, micros),
                "{text}"
            );
            assert_eq!(limit.resolution().unwrap_or_default(), resolution, "{text}");
            assert_eq!(
                (limit.to_string(), printed.parse().ok()),
                (printed.to_owned(), Some(limit)),
                "{text}"
            );
            let exact = Limit::with_window(limit.max(), limit.window()).unwrap();
            let coarse = exact.with_resolution(resolution);
            assert!(
                if resolution.is_zero() {
                    exact == limit
                } else {
                    exact != limit && coarse == Ok(limit)
                },
                "{text}"
            );
        }
    }

    #[test]
    fn leases_parse_and_print() {
        const SECOND: u64 = 1_000_000;
        for (text, window, lease, resolution, printed) in [
            ("100000/1m+1s", 61 * SECOND, SECOND, 0, "100000/1m+1s"),
            (
                "9 per hour ~ 10s + 1 second",
                3_601 * SECOND,
                SECOND,
                10 * SECOND,
                "9/1h~10s+1s",
            ),
            ("1/1us+1us", 2, 1, 0, "1/1us+1us"),
            ("1/10s+10s", 20 * SECOND, 10 * SECOND, 0, "1/10s+10s"),
            (
                "1/1m~1m+1m",
                120 * SECOND,
                60 * SECOND,
                60 * SECOND,
                "1/1m~1m+1m",
            ),
            (
                "1/9007199254740990us+1us",
                (1 << 53) - 1,
                1,
                0,
                "1/9007199254740990us+1us",
            ),
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!(limit.window().as_micros(), window, "{text}");
            assert_eq!(limit.stated_window().as_micros(), window - lease, "{text}");
            let [lease, resolution] = [lease, resolution].map(Duration::from_micros);
            assert_eq!(limit.lease(), Some(lease), "{text}");
            assert_eq!(limit.resolution().unwrap_or_default(), resolution, "{text}");
            assert_eq!(
                (limit.to_string(), printed.parse().ok()),
                (printed.to_owned(), Some(limit)),
                "{text}"
            );
            // Both orders of building, and once more: the window grows once.
            let plain = Limit::with_window(limit.max(), limit.stated_window()).unwrap();
            let leased = plain.with_lease(lease).unwrap();
            assert_ne!(
                leased,
                Limit::with_window(limit.max(), limit.window()).unwrap()
            );
            assert_eq!(leased.with_lease(lease), Ok(leased), "{text}");
            if resolution.is_zero() {
                assert_eq!(leased, limit, "{text}");
            } else {
                assert_ne!(leased, limit, "{text}");
                assert_eq!(leased.with_resolution(resolution), Ok(limit), "{text}");
                assert_eq!(
                    plain.with_resolution(resolution).unwrap().with_lease(lease),
                    Ok(limit)
                );
            }
        }
    }

    #[test]
    fn malformed_limits_say_what_was_expected() {
        for (text, part) in [
            (
                "1/1s~5s",
                "limit \"1/1s~5s\": resolution of 5s is not supported; the nearest are 1s and 10s",
            ),
            (
                "1/1s~0s",
                "resolution of 0ns is not supported; the nearest are 1us and 10us",
            ),
            (
                "1/1h~2m",
                "resolution of 120s is not supported; the nearest are 1m and 10m",
            ),
            (
                "1/1h~2h",
                "resolution of 7200s is not supported; the nearest are 1h and 6h",
            ),
            (
                "1/30d~7d",
                "resolution of 604800s is not supported; the nearest are 6h and 1d",
            ),
            (
                "1/1s~18446744073709551600us",
                "is not supported; the nearest are 6h and 1d",
            ),
            ("1/1s~18446744073709551616us", "the number is out of range"),
            (
                "1/1m~1h",
                "limit \"1/1m~1h\": resolution of 1h is longer than the window of 60s",
            ),
            (
                "1/9us~10us",
                "resolution of 10us is longer than the window of 9µs",
            ),
            (
                "1/1s~",
                "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found \"\"",
            ),
            ("1/1s~1ms~1ms", "expected a whole number and a unit"),
            ("1~1s/1s", "expected a whole number, found \"1~1s\""),
            (
                "1/1m+5s",
                "limit \"1/1m+5s\": lease of 5s is not supported; the nearest are 1s and 10s",
            ),
            (
                "1/1m+0s",
                "lease of 0ns is not supported; the nearest are 1us and 10us",
            ),
            ("1/1m+1h", "lease of 1h is longer than the window of 60s"),
            ("1/1m~1s+1h", "lease of 1h is longer than the window of 60s"),
            (
                "1/1s~10s+1s",
                "resolution of 10s is longer than the window of 1s",
            ),
            (
                "1/9007199254740991us+1us",
                "window of 9007199254740992 µs is out of range",
            ),
            (
                "1/1m+1s~1s",
                "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found \"1s~1s\"",
            ),
            ("1/1m+1s+1s", "found \"1s+1s\""),
            ("1/1m+", "as in 60s, found \"\""),
            ("1/+1s", "found \"\""),
            ("1/~1s", "expected a whole number and a unit"),
            ("", "limit \"\": expected MAX/WINDOW"),
            ("3", "expected MAX/WINDOW"),
            ("0/60s", "limit of 0 is out of range, expected 1 to"),
            ("3/0s", "window of 0 µs is out of range"),
            (
                "3/1ns",
                "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found \"1ns\"",
            ),
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
        let limit: Limit = "1/1h".parse().unwrap();
        for (resolution, message) in [
            (
                Duration::from_nanos(1_500),
                "resolution of 1.5µs is not supported; the nearest are 1us and 10us",
            ),
            (Duration::MAX, "is not supported; the nearest are 6h and 1d"),
            (
                Duration::from_secs(86_400),
                "resolution of 1d is longer than the window of 3600s",
            ),
        ] {
            let error = limit.with_resolution(resolution).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        let leased: Limit = "1/1s+1s".parse().unwrap();
        assert_eq!(
            leased
                .with_resolution(Duration::from_secs(10))
                .unwrap_err()
                .to_string(),
            "resolution of 10s is longer than the window of 1s"
        );
        let long = "9".repeat(100_000);
        for text in [
            long.clone(),
            format!("{long}x/s"),
            format!("{long}/s"),
            format!("1/{long}"),
            format!("{long},"),
        ] {
            assert!(text.parse::<Policy>().unwrap_err().to_string().len() < 300);
        }
    }

    #[test]
    fn policies_parse_and_print() {
        let policy: Policy = "3/1s,5/5s".parse().unwrap();
        assert_eq!(policy.to_string(), "3/1s, 5/5s");
        assert_eq!(
            ["1/1s"; 8]
                .join(", ")
                .parse::<Policy>()
                .unwrap()
                .limits()
                .len(),
            8
        );
        for (text, part) in [
            (
                "3/1s,",
                "policy \"3/1s,\": expected MAX/WINDOW, as in 100/60s or 100 per minute, found \"\"",
            ),
            (
                &["1/1s"; 9].join(","),
                "expected at most 8 limits, found \"1/1s\"",
            ),
            (
                "1/1s, 5/1m~1s, 9/1h~1m",
                "policy \"1/1s, 5/1m~1s, 9/1h~1m\": resolutions 1s and 1m differ, expected one \
                 resolution for the whole policy",
            ),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn constants_are_checked_by_the_compiler() {
        const STRICT: Policy =
            crate::policy!("3/1s, 100 per hour").with_counting(crate::Counting::Attempts);
        let parsed = "3/1s,100/1h"
            .parse::<Policy>()
            .unwrap()
            .with_counting(crate::Counting::Attempts);
        assert_eq!(STRICT, parsed);
        const LIMIT: Limit = match Limit::new(5, Duration::from_secs(60)) {
            Ok(limit) => limit,
            Err(_) => panic!(),
        };
        assert_eq!(Policy::from(LIMIT), "5/1m".parse().unwrap());
        const COARSE: Policy = crate::policy!("5/1m, 9/1h~1m");
        assert_eq!(COARSE, "5/1m, 9/1h~1m".parse().unwrap());
        const LEASED: Policy = crate::policy!("5/1m+1s, 9/1h~1m+100ms");
        assert_eq!(LEASED, "5/1m+1s, 9/1h~1m+100ms".parse().unwrap());
    }
}
