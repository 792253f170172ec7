//! The metadata of descriptors, which responses return.

use pbjson_types::value::Kind as Json;
use pbjson_types::{ListValue, Struct, Value};

use super::tree::{Kind, Tree};

/// Returns a mapping's entries as JSON. Keys are text as they are written.
pub(super) fn of(entries: &[(Tree, Tree)], source: &str) -> Struct {
    let entry = |(key, value): &(Tree, Tree)| {
        let key = key.text(source).unwrap_or("null");
        (key.to_owned(), value_of(value, source))
    };
    Struct {
        fields: entries.iter().map(entry).collect(),
    }
}

fn value_of(tree: &Tree, source: &str) -> Value {
    let kind = match &tree.kind {
        Kind::Nothing => Json::NullValue(0),
        Kind::Bool(value) => Json::BoolValue(*value),
        Kind::Integer(number) => Json::NumberValue(*number as f64),
        Kind::Number(number) => Json::NumberValue(*number),
        Kind::Text(text) => Json::StringValue(text.clone()),
        Kind::List(elements) => {
            let values = elements.iter().map(|element| value_of(element, source));
            Json::ListValue(ListValue {
                values: values.collect(),
            })
        }
        Kind::Mapping(entries) => Json::StructValue(of(entries, source)),
    };
    Value { kind: Some(kind) }
}

/// Adds `more` to `merged`: mappings are merged, and otherwise the first value stays.
pub(crate) fn merge(merged: &mut Struct, more: &Struct) {
    for (key, value) in &more.fields {
        match merged.fields.get_mut(key) {
            None => _ = merged.fields.insert(key.clone(), value.clone()),
            Some(first) => {
                if let (Some(Json::StructValue(first)), Some(Json::StructValue(second))) =
                    (&mut first.kind, &value.kind)
                {
                    merge(first, second);
                }
            }
        }
    }
}
