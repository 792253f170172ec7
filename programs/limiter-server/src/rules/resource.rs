//! The rules of a control plane as the tree of a file, so that they are checked as files are.

use pbjson_types::Struct;
use pbjson_types::value::Kind as Json;

use super::tree::{Kind, Tree};
use crate::proto::Unit;
use crate::xds::messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

/// Returns the tree of a domain. It has no positions.
pub(super) fn tree(config: &RateLimitConfig) -> Tree {
    mapping(vec![
        ("domain", text(&config.domain)),
        (
            "descriptors",
            list(config.descriptors.iter().map(descriptor)),
        ),
    ])
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Tree {
    let flag = |value: bool| leaf(Kind::Bool(value));
    let nothing = || leaf(Kind::Nothing);
    mapping(vec![
        ("key", text(&descriptor.key)),
        ("value", text(&descriptor.value)),
        (
            "rate_limit",
            descriptor.rate_limit.as_ref().map_or_else(nothing, policy),
        ),
        ("shadow_mode", flag(descriptor.shadow_mode)),
        ("quota_mode", flag(descriptor.quota_mode)),
        ("detailed_metric", flag(descriptor.detailed_metric)),
        (
            "metadata",
            descriptor.metadata.as_ref().map_or_else(nothing, object),
        ),
        (
            "descriptors",
            list(descriptor.descriptors.iter().map(self::descriptor)),
        ),
    ])
}

fn policy(policy: &RateLimitPolicy) -> Tree {
    let unit = match Unit::try_from(policy.unit) {
        // As in Envoy's service: the unit is absent.
        Ok(Unit::Unknown) if policy.unlimited => "",
        Ok(unit) => unit.as_str_name(),
        Err(_) => &policy.unit.to_string(),
    };
    let replaces = policy.replaces.iter();
    mapping(vec![
        ("unit", text(unit)),
        (
            "requests_per_unit",
            leaf(Kind::Integer(policy.requests_per_unit.into())),
        ),
        ("unlimited", leaf(Kind::Bool(policy.unlimited))),
        ("name", text(&policy.name)),
        (
            "replaces",
            list(replaces.map(|other| mapping(vec![("name", text(&other.name))]))),
        ),
    ])
}

fn object(object: &Struct) -> Tree {
    let fields = object.fields.iter();
    mapping(fields.map(|(key, value)| (&**key, json(value))).collect())
}

fn json(value: &pbjson_types::Value) -> Tree {
    match &value.kind {
        None | Some(Json::NullValue(_)) => leaf(Kind::Nothing),
        Some(Json::BoolValue(value)) => leaf(Kind::Bool(*value)),
        Some(Json::NumberValue(number)) => leaf(Kind::Number(*number)),
        Some(Json::StringValue(value)) => text(value),
        Some(Json::ListValue(values)) => list(values.values.iter().map(json)),
        Some(Json::StructValue(value)) => object(value),
    }
}

fn mapping(fields: Vec<(&str, Tree)>) -> Tree {
    let fields = fields.into_iter();
    leaf(Kind::Mapping(
        fields.map(|(name, value)| (text(name), value)).collect(),
    ))
}

fn list(elements: impl Iterator<Item = Tree>) -> Tree {
    leaf(Kind::List(elements.collect()))
}

fn text(value: &str) -> Tree {
    leaf(Kind::Text(value.to_owned()))
}

fn leaf(kind: Kind) -> Tree {
    Tree::unplaced(kind)
}
