#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`LimitLayer`] and [`Rule`] limit a service. [`StoreFailure`] and [`MissingKey`] are the choices to make.
//! - [`key`] lists the clients that a rule can limit.
//! - [`RateLimitHeaders`] and [`Respond`] change the responses. [`Meter`] charges streams.
//! - [`LayerBuilder::observe`] reports the outcome of each rule. Metrics and traces of stores are in `limiter-wrappers`.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod charges;
#[cfg(feature = "tonic")]
mod grpc;
mod head;
mod headers;
pub mod key;
mod layer;
mod meter;
mod observation;
mod rejection;
mod respond;
mod rule;
mod rules;
mod rulings;
mod service;

/// The crate `http`, whose types this crate's API takes. The types that most programs need are also at the root.
pub use http;
pub use http::{HeaderMap, HeaderName, StatusCode};

pub use builder::LayerBuilder;
pub use charges::Charges;
#[cfg(feature = "tonic")]
pub use grpc::GrpcStatus;
pub use head::{RequestHead, ResponseHead};
pub use headers::{FieldNames, HeaderFormat, RateLimitHeaders, ResetFormat};
#[cfg(feature = "client")]
pub use headers::{ReportedLimit, ReportedLimits};
pub use layer::LimitLayer;
pub use meter::Meter;
pub use observation::{Observation, RuleOutcome};
pub use rejection::{Cause, Rejection, StoreFailure};
pub use respond::{Problem, Respond};
pub use rule::{ActualCost, Charge, MissingKey, Rule};
pub use service::{LimitFuture, LimitService};
