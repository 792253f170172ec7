#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`MockClock`] is a clock that moves only when a test moves it.
//! - [`ReferenceStore`] is the reference implementation of the store contract. Read it before you write a store.
#![cfg_attr(
    feature = "conformance",
    doc = "- [`strategy`] generates policies and cases for property tests.\n- [`conformance::Suite`] and [`conformance_tests!`] check a store against the contract.\n- [`conformance::Phase`] lists the phases of the suite.\n- [`golden::traces`] are worked examples, decided by hand."
)]
//! - [`worst_window`] checks the promise of a limit from outside.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "conformance")]
mod case;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision_values;
#[cfg(feature = "conformance")]
pub mod golden;
#[cfg(feature = "conformance")]
mod policies;
#[cfg(feature = "conformance")]
mod poll_times;
mod reference;
#[cfg(feature = "conformance")]
mod script;
#[cfg(feature = "conformance")]
mod sentence;
#[cfg(feature = "conformance")]
pub mod strategy;
mod worst_window;

pub use clock::MockClock;
pub use decision_values::DecisionValues;
#[cfg(feature = "conformance")]
pub use poll_times::poll_times;
pub use reference::{ReferenceEntry, ReferenceStore};
pub use worst_window::{Admission, worst_window};
