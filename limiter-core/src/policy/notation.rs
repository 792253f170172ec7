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
        Reason::OutOfRange(error) => error.to_string(),
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
    use crate::policy::resolution::RESOLUTIONS;
    use crate::{Counting, policy};

    /// A text, its maximum, the microseconds of the stated window, the resolution and the lease, and the text as it prints.
    const LIMITS: &str = r"
100/60s => 100 60000000 0 0 100/1m
10 per second => 10 1000000 0 0 10/1s
5 per 10 minutes => 5 600000000 0 0 5/10m
 7 / 250 ms  => 7 250000 0 0 7/250ms
1/us => 1 1 0 0 1/1us
1/µs => 1 1 0 0 1/1us
1/μs => 1 1 0 0 1/1us
3/90s => 3 90000000 0 0 3/90s
70000/day => 70000 86400000000 0 0 70000/1d
4503599627370496/9007199254740991us => 4503599627370496 9007199254740991 0 0 4503599627370496/9007199254740991us
1/1s~100 microseconds => 1 1000000 100 0 1/1s~100us
1000 per hour ~ second => 1000 3600000000 1000000 0 1000/1h~1s
1000/1h ~ 60s => 1000 3600000000 60000000 0 1000/1h~1m
1/9007199254740991us~24h => 1 9007199254740991 86400000000 0 1/9007199254740991us~1d
100000/1m+1s => 100000 60000000 0 1000000 100000/1m+1s
9 per hour ~ 10s + 1 second => 9 3600000000 10000000 1000000 9/1h~10s+1s
1/10s+10s => 1 10000000 0 10000000 1/10s+10s
1/1m~1m+1m => 1 60000000 60000000 60000000 1/1m~1m+1m
1/9007199254740990us+1us => 1 9007199254740990 0 1 1/9007199254740990us+1us
";

    #[test]
    fn limits_parse_and_print() {
        for line in LIMITS.lines().filter(|line| !line.is_empty()) {
            let (text, expected) = line.split_once(" => ").unwrap();
            let limit: Limit = text.parse().unwrap();
            let [resolution, lease] = [limit.resolution_micros(), limit.lease_micros()];
            let stated = limit.stated_window();
            let micros = stated.as_micros();
            let found = format!("{} {micros} {resolution} {lease} {limit}", limit.max());
            assert_eq!(found, expected);
            assert_eq!(limit.window().as_micros(), micros + lease, "{text}");
            assert_eq!(limit.to_string().parse().ok(), Some(limit));

            // Any order of building, and once more: the window grows once.
            let exact = Limit::with_window(limit.max(), stated).unwrap();
            assert_eq!(exact == limit, resolution + lease == 0, "{text}");
            let coarse = |to: Limit| {
                let resolution = limit.resolution().map(|length| to.with_resolution(length));
                resolution.unwrap_or(Ok(to)).unwrap()
            };
            let leased = |to: Limit| {
                let lease = limit.lease().map(|length| to.with_lease(length));
                lease.unwrap_or(Ok(to)).unwrap()
            };
            for built in [coarse(leased(exact)), leased(coarse(exact)), leased(limit)] {
                assert_eq!(built, limit, "{text}");
            }
        }
    }

    #[test]
    fn every_length_is_a_resolution_and_a_lease_of_its_own_window() {
        for (micros, length) in &RESOLUTIONS[1..] {
            let text = format!("1/{length}~{length}+{length}");
            let limit: Limit = text.parse().unwrap();
            let found = [limit.resolution_micros(), limit.lease_micros()];
            assert_eq!((found, limit.to_string()), ([*micros; 2], text));
        }
    }

    /// A text, and a part of the error.
    const MALFORMED: &str = r#"
1/1s~5s => limit "1/1s~5s": resolution of 5s is not supported; the nearest are 1s and 10s
1/1s~0s => resolution of 0ns is not supported; the nearest are 1us and 10us
1/1h~2m => resolution of 120s is not supported; the nearest are 1m and 10m
1/1h~2h => resolution of 7200s is not supported; the nearest are 1h and 6h
1/30d~7d => resolution of 604800s is not supported; the nearest are 6h and 1d
1/1s~18446744073709551600us => is not supported; the nearest are 6h and 1d
1/1s~18446744073709551616us => the number is out of range
1/1m~1h => limit "1/1m~1h": resolution of 1h is longer than the window of 60s
1/9us~10us => resolution of 10us is longer than the window of 9µs
1/1s~ => expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found ""
1/1s~1ms~1ms => expected a whole number and a unit
1~1s/1s => expected a whole number, found "1~1s"
1/1m+5s => limit "1/1m+5s": lease of 5s is not supported; the nearest are 1s and 10s
1/1m+0s => lease of 0ns is not supported; the nearest are 1us and 10us
1/1m+1h => lease of 1h is longer than the window of 60s
1/1m~1s+1h => lease of 1h is longer than the window of 60s
1/1s~10s+1s => resolution of 10s is longer than the window of 1s
1/9007199254740991us+1us => window of 9007199254740992 µs is out of range
1/1m+1s~1s => expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found "1s~1s"
1/1m+1s+1s => found "1s+1s"
1/1m+ => as in 60s, found ""
1/+1s => found ""
1/~1s => expected a whole number and a unit
 => limit "": expected MAX/WINDOW
3 => expected MAX/WINDOW
0/60s => limit of 0 is out of range, expected 1 to
3/0s => window of 0 µs is out of range
5/400000d => limit "5/400000d": window of 400000d is out of range, expected 1 to 9007199254740991 µs (104249d)
3/1ns => expected a whole number and a unit of us, ms, s, m, h or d, as in 60s, found "1ns"
-1/s => expected a whole number, found "-1"
+1/s => expected a whole number, found "+1"
1.5/s => expected a whole number, found "1.5"
3/ => expected a whole number and a unit
3/1.5s => expected a whole number and a unit
/s => expected a whole number, found ""
3/s/s => expected a whole number and a unit
18446744073709551616/s => out of range
18446744073709551615/s => out of range
4503599627370497/s => out of range
1/9007199254740992us => out of range
1/18446744073709551616us => out of range
1/18446744073709551615d => out of range
٣/s => expected a whole number, found "٣"
1/œ => expected a whole number and a unit
"#;

    #[test]
    fn malformed_limits_say_what_was_expected() {
        for line in MALFORMED.lines().filter(|line| !line.is_empty()) {
            let (text, part) = line.split_once(" => ").unwrap();
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidLimit);
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let nearest = |nanos| {
            let limit: Limit = "1/1h".parse().unwrap();
            let error = limit.with_resolution(Duration::from_nanos(nanos));
            error.unwrap_err().to_string()
        };
        let unsupported = "resolution of 1.5µs is not supported; the nearest are 1us and 10us";
        assert_eq!(nearest(1_500), unsupported);
        assert!(nearest(u64::MAX).ends_with("is not supported; the nearest are 6h and 1d"));
        let long = "9".repeat(100_000);
        for ends in [["", ""], ["", "x/s"], ["", "/s"], ["1/", ""], ["", ","]] {
            let text = ends.join(&long);
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.to_string().len() < 300);
        }
    }

    #[test]
    fn policies_parse_and_print() {
        let policy: Policy = "3/1s,5/5s".parse().unwrap();
        assert_eq!(policy.to_string(), "3/1s, 5/5s");
        let eight: Policy = ["1/1s"; 8].join(", ").parse().unwrap();
        assert_eq!(eight.limits().len(), 8);
        for (text, part) in [
            (
                "3/1s,",
                r#"policy "3/1s,": expected MAX/WINDOW, as in 100/60s or 100 per minute, found """#,
            ),
            (
                &["1/1s"; 9].join(","),
                r#"expected at most 8 limits, found "1/1s""#,
            ),
            (
                "1/1s, 5/1m~1s, 9/1h~1m",
                r#"9/1h~1m": resolutions 1s and 1m differ, expected one resolution for the whole policy"#,
            ),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn constants_are_checked_by_the_compiler() {
        const STRICT: Policy = policy!("3/1s, 100 per hour").with_counting(Counting::Attempts);
        const LEASED: Policy = policy!("5/1m+1s, 9/1h~1m+100ms");
        const LIMIT: Limit = match Limit::new(5, Duration::from_secs(60)) {
            Ok(limit) => limit,
            Err(_) => panic!(),
        };
        let parse = |text: &str| text.parse::<Policy>().unwrap();
        let attempts = parse("3/1s,100/1h").with_counting(Counting::Attempts);
        assert_eq!(STRICT, attempts);
        assert_eq!(LEASED, parse("5/1m+1s, 9/1h~1m+100ms"));
        assert_eq!(Policy::from(LIMIT), parse("5/1m"));
    }
}
