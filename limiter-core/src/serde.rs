//! Serde support. [`Policy`] documents the format.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::limit::Limit;
use crate::policy::{Counting, Policy};
use crate::time::Window;

macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

as_text!(Window, Limit);

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
        let policy = Policy::new(table.limits).map_err(A::Error::custom)?.with_counting(table.counting);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;

    #[test]
    fn policies_round_trip_and_reject_nonsense() {
        let text = r#"{"name":"api","limits":["3/1s","100/1h~1m"],"counting":"attempts"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let short: Policy = serde_json::from_str(r#"{"limits":["3 per second"]}"#).unwrap();
        assert_eq!((short.counting(), short.name()), (Counting::Admitted, None));
        assert_eq!(serde_json::from_str::<Policy>("\"3/1s, 5/15m\"").unwrap(), policy!("3/1s, 5/15m"));
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
        assert!(error.contains("expected limits as in \"5/10s, 100/1h\""), "{error}");
    }
}
