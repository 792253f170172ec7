//! One key's log, in the smallest form that can hold it.

pub(crate) mod inline;
pub(crate) mod lifetime;
pub(crate) mod ring;
pub(crate) mod sparse;
pub(crate) mod view;

use limiter_core::Timestamp;
use limiter_core::store::{Facts, Op};

use self::inline::Inline;
use self::lifetime::Lifetime;
use self::ring::{Format, Ring};
use self::sparse::Sparse;
use self::view::{Header, Oldest};

/// A log is converted when its form cannot hold the next entry, and never converted back.
#[derive(Clone)]
pub(crate) enum LogForm {
    Ring(Ring),
    Other(Other),
}

/// Nested in [`LogForm`] so that both tags fit into unused values: a log takes 32 bytes.
#[derive(Clone)]
pub(crate) enum Other {
    Inline(Inline),
    Sparse(Box<Sparse>),
}

/// A log, and its bucket's record of the oldest entry, if it is in a bucket.
pub(crate) type Parts<'a> = (&'a mut LogForm, Option<&'a mut Oldest>);

pub(crate) trait LogParts {
    fn parts(&mut self) -> Parts<'_>;
}

impl LogParts for LogForm {
    #[inline(always)]
    fn parts(&mut self) -> Parts<'_> {
        (self, None)
    }
}

/// Evaluates the first expression with the entries of a log in a compact form, or the second with a sparse log. A macro, because the
/// entries have a different type in each form.
macro_rules! with_entries {
    ($log:expr, $entries:ident => $body:expr, $sparse:pat => $otherwise:expr) => {{
        use $crate::log::{LogForm, Other};
        match $log {
            LogForm::Ring(ring) => $crate::log::ring::with_format!(ring.header.format(), E => {
                let $entries = ring.view::<E>(None);
                $body
            }),
            LogForm::Other(Other::Inline(inline)) => {
                let $entries = inline.view();
                $body
            }
            LogForm::Other(Other::Sparse($sparse)) => $otherwise,
        }
    }};
}
pub(crate) use with_entries;

impl LogForm {
    /// Returns an empty log whose first entry will have this number of 24 bits.
    pub(crate) fn new(number: u32) -> Self {
        Self::Other(Other::Inline(Inline::new(number)))
    }

    /// Returns an operation's facts if it repeats another. Only a sparse log has ids.
    pub(crate) fn repeated(&self, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
        match self {
            Self::Other(Other::Sparse(sparse)) => sparse.log.repeated(op, now),
            _ => None,
        }
    }

    /// Drops the first `expired` entries and takes a form that can hold the operation's entry.
    #[cold]
    pub(crate) fn convert_for(&mut self, op: &Op<'_>, expired: usize) {
        if op.merges() || self.len() - expired >= ring::MAX_LEN {
            self.make_sparse();
            return;
        }
        let kept = self.lifetime();
        let format = if let Self::Ring(ring) = self {
            ring.header.format()
        } else {
            Format::default()
        };
        let ring = with_entries!(self, entries => Ring::copy_of(&entries, expired, op, kept, format), _ => return);
        *self = Self::Ring(ring);
    }

    /// Returns the log in the sparse form. Converts it if necessary.
    pub(crate) fn make_sparse(&mut self) -> &mut Sparse {
        let kept = self.lifetime();
        if let Some(sparse) =
            with_entries!(self, entries => Some(Sparse::copy_of(&entries, kept)), _ => None)
        {
            *self = Self::Other(Other::Sparse(Box::new(sparse)));
        }
        match self {
            Self::Other(Other::Sparse(sparse)) => sparse,
            _ => unreachable!("the log has just taken this form"),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Other(Other::Sparse(sparse)) => sparse.log.newest(),
            Self::Other(Other::Inline(inline)) => (inline.len() > 0).then(|| inline.newest()),
            Self::Ring(ring) => (ring.header.len() > 0).then(|| ring.header.newest()),
        }
    }

    pub(crate) fn lifetime(&self) -> Lifetime {
        match self {
            Self::Ring(ring) => ring.header.lifetime(),
            Self::Other(Other::Inline(inline)) => inline.lifetime(),
            Self::Other(Other::Sparse(sparse)) => sparse.lifetime,
        }
    }

    /// Returns how many entries the log holds, including expired ones.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.header.len(),
            Self::Other(Other::Inline(inline)) => inline.len(),
            Self::Other(Other::Sparse(sparse)) => sparse.log.len(),
        }
    }

    /// Returns the number that eviction compares: of entries, or of units if entries may merge.
    pub(crate) fn weight(&self) -> u64 {
        if let Self::Other(Other::Sparse(sparse)) = self {
            sparse.log.cost()
        } else {
            self.len() as u64
        }
    }

    /// Returns an [`Oldest`] that matches no entry of this log.
    pub(crate) fn no_oldest(&mut self) -> Oldest {
        Oldest::none(with_entries!(self, entries => entries.number(0), _ => 0))
    }

    /// Whether the store may evict the log at `now` by its own clock.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.newest()
            .is_none_or(|newest| self.lifetime().is_over(newest, now))
    }
}
