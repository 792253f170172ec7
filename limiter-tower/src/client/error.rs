//! Errors of the layer for clients.

use std::fmt;

use crate::refusal::{Cause, Refusal};

/// Why a [`Wait`](crate::Wait) has no response.
#[derive(Debug)]
pub enum WaitError<E> {
    /// The request was not sent.
    Refused(Refusal),
    /// The service failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for WaitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "the request was not sent: {refusal}"),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for WaitError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refusal) => match refusal.cause() {
                Cause::StoreFailed(error) => Some(error),
                _ => None,
            },
            Self::Service(error) => error.source(),
        }
    }
}
