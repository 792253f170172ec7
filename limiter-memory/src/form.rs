//! Which forms a ring's words have.

use crate::layout::Layout;

/// What is in a ring's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    /// All of each time, not only its low half.
    pub(crate) wide: bool,
    /// Totals, too.
    pub(crate) costs: bool,
    pub(crate) hints: bool,
}

impl Form {
    pub(crate) const BITS: u32 = 3;

    #[inline(always)]
    pub(crate) const fn of<L: Layout, const H: usize>() -> Self {
        Self { wide: L::RANGE == u64::MAX, costs: L::COSTS, hints: H > 0 }
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.costs as u64 | (self.wide as u64) << 1 | (self.hints as u64) << 2
    }

    /// From as many low bits.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { costs: bits & 1 > 0, wide: bits & 2 > 0, hints: bits & 4 > 0 }
    }
}

/// Says something with a form's [`Layout`], and with how many words of hints there are.
macro_rules! in_form {
    ($form:expr, $layout:ident, $hints:ident => $body:expr) => {{
        let form: $crate::form::Form = $form;
        match (form.wide, form.costs) {
            (false, false) => in_form!(form, Narrow, $layout, $hints => $body),
            (false, true) => in_form!(form, NarrowCosts, $layout, $hints => $body),
            (true, false) => in_form!(form, Wide, $layout, $hints => $body),
            (true, true) => in_form!(form, WideCosts, $layout, $hints => $body),
        }
    }};
    ($form:ident, $this:ident, $layout:ident, $hints:ident => $body:expr) => {{
        type $layout = $crate::layout::$this;
        if $form.hints {
            const $hints: usize = $crate::ring::HINTS;
            $body
        } else {
            const $hints: usize = 0;
            $body
        }
    }};
}
pub(crate) use in_form;
