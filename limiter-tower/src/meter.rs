//! Charges that are settled when their work ends.

use crate::charges::{Charges, detach, settle};

/// The units that a request has used so far. Dropping it settles the request's [`Charges`] to them, in the background.
///
/// The cost of a streamed response is known when the stream ends. Move the meter into the stream: it is dropped after the last chunk, after
/// an error, when the client disconnects, and with a handler that gets no response. So a stream that breaks off costs its prompt and
/// what it has sent. If it were free, a client could break off each stream on purpose; if the charge stayed, it would cost the longest
/// stream. Settling above the charge may exceed the limit by the difference.
///
/// ```
/// # use axum::{Extension, body::Body};
/// # use futures::{StreamExt, stream};
/// # use limiter_tower::Charges;
/// async fn chat(Extension(charges): Extension<Charges>, prompt: String) -> Body {
///     // The model reads the prompt before the first token.
///     let mut meter = charges.meter(prompt.split(' ').count() as u64);
///     Body::from_stream(stream::iter(["three ", "short ", "words"]).map(move |token| {
///         meter.add(1);
///         Ok::<_, std::io::Error>(token)
///     }))
/// }
/// # let _ = chat;
/// ```
///
/// Without a reservation of the longest stream, take [instalments](limiter_core::Permit::acquire_more): the rule charges the first one.
///
/// # Errors of the store
/// A settlement that fails is repeated each second, for ten seconds, unless no retry mends its error. Repeated settlements count once. If
/// the charge has expired by then, the units are recorded as a new entry, and only once: a lost reply must not count twice. If
/// everything fails, or the process ends, the charge stays as it was until it expires.
///
/// # Without a tokio runtime
/// A store in memory settles immediately. With any other store, or without the feature `tokio`, the charge stays.
#[derive(Debug)]
#[must_use = "dropping a meter settles the charges to the units that it has counted"]
pub struct Meter {
    charges: Charges,
    used: u64,
}

impl Charges {
    /// Returns a meter that has counted `used` units, such as those of a prompt. It settles each of the charges to the same cost.
    pub fn meter(self, used: u64) -> Meter {
        Meter {
            charges: self,
            used,
        }
    }
}

impl Meter {
    /// Counts more units.
    pub fn add(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }

    /// Replaces the count, for instance with the total at the end of a model's stream. 0 refunds the charges.
    pub fn set(&mut self, units: u64) {
        self.used = units;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        for charge in self.charges.iter().cloned() {
            detach(settle(charge, self.used));
        }
    }
}
