//! Serde support. Limits and windows are strings, and a policy is a map with `limits`, `counting` and `name`.

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, Error as _};
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

impl Serialize for Counting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Admitted => "admitted",
            Self::Attempts => "attempts",
        })
    }
}

impl<'de> Deserialize<'de> for Counting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*Cow::<'de, str>::deserialize(deserializer)? {
            "admitted" => Ok(Self::Admitted),
            "attempts" => Ok(Self::Attempts),
            other => Err(D::Error::unknown_variant(other, &["admitted", "attempts"])),
        }
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

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = PolicyTable::deserialize(deserializer)?;
        let policy = Self::new(table.limits).map_err(D::Error::custom)?.with_counting(table.counting);
        match table.name {
            Some(name) => Ok(policy.with_name(name)),
            None => Ok(policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip_and_reject_nonsense() {
        let text = r#"{"name":"api","limits":["3/1s","100/1h"],"counting":"attempts"}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let short: Policy = serde_json::from_str(r#"{"limits":["3 per second"]}"#).unwrap();
        assert_eq!((short.counting(), short.name()), (Counting::Admitted, None));
        for bad in [
            r#"{"limits":[]}"#,
            r#"{"limits":["3"]}"#,
            r#"{"limits":["3/1s"],"counting":"both"}"#,
            r#"{"limits":["3/1s"],"max":1}"#,
        ] {
            assert!(serde_json::from_str::<Policy>(bad).is_err(), "{bad}");
        }
    }
}
