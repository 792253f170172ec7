#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`MockClock`] is a clock that moves only when a test moves it.
//! - [`ReferenceStore`] is the reference implementation of the store contract. Read it before you write a store.
#![cfg_attr(
    feature = "conformance",
    doc = "- [`conformance::Suite`] and [`conformance_tests!`] check a store against the contract.\n- [`conformance::Phase`] lists the phases of the suite."
)]
//! - [`golden::traces`] are worked examples, decided by hand.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod golden;
#[cfg(feature = "conformance")]
mod poll_times;
mod reference;

pub use answer::Answer;
pub use clock::MockClock;
#[cfg(feature = "conformance")]
pub use poll_times::poll_times;
pub use reference::{ReferenceEntry, ReferenceStore};
