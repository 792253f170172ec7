//! Searching for the boundary between entries that have expired and entries that count.

/// Returns the first index up to `len` for which `before` is false, where `before` holds for a prefix. Searches from `hint` in
/// either direction: every hint gives the right result, a near one is fast.
#[inline]
pub(crate) fn boundary(hint: usize, len: usize, before: impl Fn(usize) -> bool) -> usize {
    let hint = hint.min(len);
    if hint < len && before(hint) {
        gallop(hint, len, before)
    } else if hint > 0 && !before(hint - 1) {
        hint - gallop(0, hint, |back| !before(hint - 1 - back))
    } else {
        hint
    }
}

/// Returns the first index in `from..to` for which `before` is false, or `to`, where `before` holds for a prefix. Probes 1, 2,
/// 4, … ahead and then bisects: logarithmic in the distance, not in the length.
#[inline]
pub(crate) fn gallop(from: usize, to: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (from, 1);
    while low < to && before(low) {
        let next = low.saturating_add(step).min(to);
        if next >= to || !before(next) {
            let (mut below, mut above) = (low, next);
            while above - below > 1 {
                let middle = below + (above - below) / 2;
                if before(middle) {
                    below = middle;
                } else {
                    above = middle;
                }
            }
            return above;
        }
        low = next;
        step *= 2;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_boundary_is_found_from_every_hint() {
        for len in 0..40 {
            for wanted in 0..=len {
                for hint in 0..=len + 1 {
                    assert_eq!(boundary(hint, len, |i| i < wanted), wanted, "{hint} of {len}");
                }
            }
        }
    }
}
