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
    S1 S2 S3 S4 S5 S6 S7 S8
    F1 F2
    E1 E2
    C1 C2
}

impl Sentence {
    /// Returns the text of the item, which may have several sentences.
    #[must_use]
    pub fn text(self) -> String {
        items()
            .find(|(label, _)| *label == self.label())
            .map(|(_, text)| text)
            .unwrap_or_default()
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.label(), self.text())
    }
}

/// Returns the label and the plain text of each item.
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
        Some((label, plain(&text.join(" "))))
    })
}

/// Removes links and code marks: `` [`Op::appends`](Self::apply) `` becomes `Op::appends`.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    text.retain(|c| !matches!(c, '[' | ']' | '`'));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_enum_and_the_contract_list_the_same_items() {
        let labels: Vec<&str> = items().map(|(label, _)| label).collect();
        let expected: Vec<&str> = Sentence::ALL
            .iter()
            .map(|sentence| sentence.label())
            .collect();
        assert_eq!(labels, expected);
        let marked = CONTRACT.matches("**").count();
        assert_eq!(
            marked,
            2 * labels.len(),
            "an item of the contract was not recognised"
        );
    }

    #[test]
    fn items_are_complete_and_without_markup() {
        for sentence in Sentence::ALL {
            let text = sentence.text();
            assert!(
                text.starts_with(char::is_uppercase) && text.ends_with('.'),
                "{sentence}"
            );
            assert!(
                !text.contains(['[', ']', '`', '*', '\n']) && !text.contains("  "),
                "{sentence}"
            );
        }
        assert_eq!(
            Sentence::L4.to_string(),
            "L4: Op::appends returns true if the operation appends an entry. An operation that does not append leaves the log unchanged."
        );
    }
}
