//! A sorted set, in order of score and then bytes.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A member's bytes.
pub(crate) type Member = Arc<[u8]>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SortedSet {
    order: VecDeque<(f64, Member)>,
    scores: HashMap<Member, f64>,
}

/// One end of a range of members, as in `ZRANGEBYLEX`.
pub(crate) enum LexBound<'a> {
    Least,
    Most,
    Including(&'a [u8]),
    Excluding(&'a [u8]),
}

impl<'a> LexBound<'a> {
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        Some(match text {
            b"-" => Self::Least,
            b"+" => Self::Most,
            [b'[', member @ ..] => Self::Including(member),
            [b'(', member @ ..] => Self::Excluding(member),
            _ => return None,
        })
    }

    /// Returns `true` if a member lies below this lower bound.
    fn is_above(&self, member: &[u8]) -> bool {
        match self {
            Self::Least => false,
            Self::Most => true,
            Self::Including(bound) => member < *bound,
            Self::Excluding(bound) => member <= *bound,
        }
    }

    /// Returns `true` if a member does not exceed this upper bound.
    fn reaches(&self, member: &[u8]) -> bool {
        match self {
            Self::Least => false,
            Self::Most => true,
            Self::Including(bound) => member <= *bound,
            Self::Excluding(bound) => member < *bound,
        }
    }
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Returns the rank that a member has, or would have.
    fn place(&self, score: f64, member: &[u8]) -> usize {
        self.order.partition_point(|(other, bytes)| {
            other.total_cmp(&score).then_with(|| (**bytes).cmp(member)) == Ordering::Less
        })
    }

    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        Some(self.place(self.score(member)?, member))
    }

    /// Adds a member or changes its score. Returns `true` if it is new.
    pub(crate) fn add(&mut self, score: f64, member: &[u8]) -> bool {
        let is_new = !self.remove(member);
        let member: Member = member.into();
        self.order
            .insert(self.place(score, &member), (score, Arc::clone(&member)));
        self.scores.insert(member, score);
        is_new
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let rank = self.rank(member);
        rank.is_some_and(|rank| self.remove_ranks(rank..rank + 1) == 1)
    }

    pub(crate) fn remove_ranks(&mut self, ranks: Range<usize>) -> usize {
        let count = ranks.len();
        for (_, member) in self.order.drain(ranks) {
            self.scores.remove(&member);
        }
        count
    }

    pub(crate) fn members(
        &self,
        ranks: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = &(f64, Member)> {
        self.order.range(ranks)
    }

    /// Returns the ranks of the members between two bounds. All callers' ids precede all entries, by score and by bytes.
    pub(crate) fn between(&self, min: &LexBound<'_>, max: &LexBound<'_>) -> Range<usize> {
        let start = self
            .order
            .partition_point(|(_, member)| min.is_above(member));
        let end = self
            .order
            .partition_point(|(_, member)| max.reaches(member));
        start..end.max(start)
    }

    /// Returns the number of members with a lower score.
    pub(crate) fn below(&self, score: f64) -> usize {
        self.order.partition_point(|(other, _)| *other < score)
    }
}
