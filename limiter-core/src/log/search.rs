//! Searching for the boundary between entries that have expired and entries that count.

/// Returns the first index in `from..to` for which `before` is false, or `to`, where `before` holds for a prefix. Probes 1, 2,
/// 4, … ahead and then bisects: logarithmic in the distance, not in the length.
#[inline]
#[must_use]
pub fn gallop(from: usize, to: usize, before: impl Fn(usize) -> bool) -> usize {
    let mut low = from;
    let mut high = from;
    let mut step = 1;
    while high < to && before(high) {
        (low, high, step) = (high + 1, high.saturating_add(step).min(to), 2 * step);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_boundary_is_found_from_every_start() {
        for to in 0..40 {
            for wanted in 0..=to {
                for from in 0..=wanted {
                    assert_eq!(
                        gallop(from, to, |i| i < wanted),
                        wanted,
                        "from {from} to {to}"
                    );
                }
            }
        }
    }
}
