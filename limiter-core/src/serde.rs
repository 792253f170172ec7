//! Serde support. [`Policy`] and [`Decision`] document their formats.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::decision::Decision;
use crate::policy::limit::Limit;
use crate::policy::{Counting, Policy};
use crate::status::{LimitStatus, Status};

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Policy", 3)?;
        out.serialize_field("name", &self.name())?;
        out.serialize_field("limits", self.limits())?;
        out.serialize_field("counting", &self.counting())?;
        out.end()
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTable {
    name: Option<String>,
    limits: Vec<Limit>,
    #[serde(default)]
    counting: Counting,
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limits as in \"5/10s, 100/1h\", or a table with `limits` and optionally `counting` and `name`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Policy, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        let table = PolicyTable::deserialize(MapAccessDeserializer::new(map))?;
        let policy = Policy::new(table.limits)
            .map_err(A::Error::custom)?
            .with_counting(table.counting);
        Ok(match table.name {
            Some(name) => policy.with_name(name),
            None => policy,
        })
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PolicyVisitor)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Writes the usage of one limit.
fn counts<S: SerializeStruct>(
    out: &mut S,
    usage: &LimitStatus,
    retry_after: Option<Duration>,
    reset_after: Duration,
) -> Result<(), S::Error> {
    out.serialize_field("limit", &usage.limit().max())?;
    out.serialize_field("used", &usage.used())?;
    out.serialize_field("remaining", &usage.remaining())?;
    out.serialize_field("retry_after_us", &retry_after.map(micros))?;
    out.serialize_field("refill_after_us", &micros(usage.refill_after()))?;
    out.serialize_field("reset_after_us", &micros(reset_after))
}

impl Serialize for LimitStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("LimitStatus", 8)?;
        counts(&mut out, self, self.retry_after(), self.reset_after())?;
        out.serialize_field("window_us", &self.limit().stated_window().as_micros())?;
        out.serialize_field("resolution_us", &self.limit().resolution().map(micros))?;
        out.end()
    }
}

/// Writes the usage of the binding limit, and of each.
fn usage<S: SerializeStruct>(
    out: &mut S,
    status: &Status,
    retry_after: Option<Duration>,
) -> Result<(), S::Error> {
    counts(out, &status.binding(), retry_after, status.reset_after())?;
    out.serialize_field("at_us", &status.at().as_micros())?;
    out.serialize_field("limits", &*status.limits())
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Status", 8)?;
        usage(&mut out, self, None)?;
        out.end()
    }
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Decision", 9)?;
        out.serialize_field("allowed", &self.fits())?;
        usage(&mut out, self.status(), self.retry_after())?;
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;
    use crate::policy::time::Timestamp;
    use crate::store::{Log, Op, decide};

    #[test]
    fn policies_round_trip_and_reject_nonsense() {
        let text = r#"{"name":"api","limits":["3/1s","100/1h~1m"],"counting":"attempts"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let short: Policy = serde_json::from_str(r#"{"limits":["3 per second"]}"#).unwrap();
        assert_eq!((short.counting(), short.name()), (Counting::Admitted, None));
        let text: Policy = serde_json::from_str("\"3/1s, 5/15m\"").unwrap();
        assert_eq!(text, policy!("3/1s, 5/15m"));
        for bad in [
            r#"{"limits":[]}"#,
            r#"{"limits":["3"]}"#,
            r#"{"limits":["3/1s"],"counting":"both"}"#,
            r#"{"limits":["3/1s"],"max":1}"#,
            r#""5/10x""#,
            "7",
        ] {
            assert!(serde_json::from_str::<Policy>(bad).is_err(), "{bad}");
        }
        let error = serde_json::from_str::<Policy>("7").unwrap_err().to_string();
        let expected = "expected limits as in \"5/10s, 100/1h\"";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_decision_is_written_in_microseconds() {
        let policy = policy!("2/1s, 9/1h~1m");
        let mut log = Log::new();
        let [_, _, denied] = [200_000, 400_000, 500_000].map(|micros| {
            let at = Timestamp::from_micros_saturating(micros);
            let op = Op::acquire("", &policy).at(at);
            decide(&op, log.apply(&op, at))
        });
        let usage =
            r#""limit":2,"used":2,"remaining":0,"retry_after_us":700000,"refill_after_us":700000"#;
        let limits = concat!(
            r#""reset_after_us":900000,"window_us":1000000,"resolution_us":null},{"limit":9,"used":2,"remaining":7,"#,
            r#""retry_after_us":null,"refill_after_us":3599700000,"reset_after_us":3599900000,"#,
            r#""window_us":3600000000,"resolution_us":60000000}]"#
        );
        let all = format!(
            r#"{usage},"reset_after_us":3599900000,"at_us":500000,"limits":[{{{usage},{limits}}}"#
        );
        let json = serde_json::to_string(&denied).unwrap();
        assert_eq!(json, format!(r#"{{"allowed":false,{all}"#));
        let json = serde_json::to_string(&denied.into_status()).unwrap();
        let waits = all.replace(r#""retry_after_us":700000"#, r#""retry_after_us":null"#);
        assert_eq!(json, format!("{{{waits}"));
    }
}
