//! A file's text as a tree with positions, so that one pass finds all errors.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{
    DuplicateKeyPolicy, Location, MessageFormatter, NonFiniteFloatPolicy, Spanned,
    UserMessageFormatter,
};

/// A value, and where it is defined. Aliases and merged mappings are expanded.
///
/// What a control plane sent has no position: line 0.
pub(super) struct Tree {
    pub(super) line: u64,
    pub(super) column: u64,
    /// The bytes of a scalar in the source.
    span: Range<usize>,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Nothing,
    Bool(bool),
    Integer(u64),
    /// Any other number.
    Number(f64),
    Text(String),
    List(Vec<Tree>),
    /// May hold a key twice.
    Mapping(Vec<(Tree, Tree)>),
}

/// A message, and the line and the column that it is about.
pub(super) type Problem = (u64, u64, String);

impl Tree {
    /// Returns a value without a position.
    pub(super) fn unplaced(kind: Kind) -> Self {
        Self {
            line: 0,
            column: 0,
            span: 0..0,
            kind,
        }
    }

    /// Parses a file's documents. Empty ones are left out.
    pub(super) fn parse(source: &str) -> Result<Vec<Self>, Problem> {
        let options = serde_saphyr::options! {
            // The reader reports duplicate keys, with all other errors.
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            // As Envoy's service reads numbers: 010 is 8.
            legacy_octal_numbers: true,
            non_finite_float_policy: NonFiniteFloatPolicy::AsString,
            // Reading is recursive. 16 descriptors nest 34 levels deep.
            budget: serde_saphyr::budget! { max_events: 20_000_000, max_nodes: 10_000_000, max_depth: 34 },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 200_000 },
        };
        serde_saphyr::from_multiple_with_options(source, options).map_err(|error| {
            let (line, column) = error
                .location()
                .map_or((1, 1), |at| (at.line(), at.column()));
            (
                line,
                column,
                UserMessageFormatter
                    .format_message(error.without_snippet())
                    .into_owned(),
            )
        })
    }

    /// Returns the text of a scalar. Numbers are text as they are written: `1.10` is not `1.1`.
    pub(super) fn text<'a>(&'a self, source: &'a str) -> Option<&'a str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            Kind::Bool(_) | Kind::Integer(_) | Kind::Number(_) => source.get(self.span.clone()),
            Kind::Nothing | Kind::List(_) | Kind::Mapping(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, defined, .. } = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self {
            line: defined.line(),
            column: defined.column(),
            span: bytes(&defined),
            kind: value,
        })
    }
}

fn bytes(location: &Location) -> Range<usize> {
    let span = location.span();
    let end =
        |start: usize| Some(start..start.checked_add(usize::try_from(span.byte_len()?).ok()?)?);
    span.byte_offset()
        .and_then(|start| usize::try_from(start).ok())
        .and_then(end)
        .unwrap_or_default()
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

/// Defines how other numbers are read.
macro_rules! other_numbers {
    ($($visit:ident: $number:ty,)*) => {$(
        fn $visit<E>(self, value: $number) -> Result<Kind, E> {
            Ok(Kind::Number(value as f64))
        }
    )*};
}

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    other_numbers! { visit_u128: u128, visit_i128: i128, visit_f64: f64, }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a mapping")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Integer(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(u64::try_from(value).map_or(Kind::Number(value as f64), Kind::Integer))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Kind, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Kind::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = mapping.next_entry()? {
            entries.push(entry);
        }
        Ok(Kind::Mapping(entries))
    }
}
