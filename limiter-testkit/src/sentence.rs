//! The numbered sentences of the contract.

use std::fmt;

use limiter_core::internal::CONTRACT;

macro_rules! sentences {
    ($($label:ident)*) => {
        /// A numbered item of the contract in the docs of [`WindowStore`](limiter_core::WindowStore).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the contract has the text")]
        pub enum Sentence { $($label),* }

        impl Sentence {
            /// All items, in the order of the contract.
            pub const ALL: &[Self] = &[$(Self::$label),*];

            /// Returns the label, for example `S4`.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$label => stringify!($label)),* }
            }
        }
    };
}

sentences! {
    T1 T2 T3 T4 T5
    L1 L2 L3 L4 L5 L6 L7 L8 L9 L10 L11 L12 L13 L14 L15
    M1 M2 M3 M4
    A1 A2 A3 A4 A5 A6 A7 A8
    S1 S2 S3 S4 S5 S6 S7 S8 S9
    F1 F2
    E1 E2 E3
    C1 C2
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = items().find(|(label, _)| *label == self.label());
        let text = text.map(|(_, text)| text).unwrap_or_default();
        write!(f, "{}: {text}", self.label())
    }
}

/// Returns the label and the text of each item, which may have several sentences, without the marks of rustdoc.
fn items() -> impl Iterator<Item = (&'static str, String)> {
    CONTRACT.split("\n- **").skip(1).filter_map(|item| {
        let (label, rest) = item.split_once(".** ")?;
        // Continuation lines are indented.
        let mut lines = rest.lines();
        let first = lines.next()?;
        let more = lines
            .take_while(|line| line.starts_with("  "))
            .map(str::trim);
        let text: Vec<&str> = std::iter::once(first).chain(more).collect();
        let text = text.join(" ").replace(['`', '['], "");
        let parts = text.split("](").enumerate();
        let without_targets = parts.map(|(number, part)| match part.split_once(')') {
            Some((_, rest)) if number > 0 => rest,
            _ => part,
        });
        let text: String = without_targets.collect();
        Some((label, text.replace(']', "")))
    })
}
