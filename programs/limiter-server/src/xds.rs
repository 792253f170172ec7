//! Rules that a control plane sends: a client of Envoy's aggregated discovery service (xDS, state of the world).
//!
//! Envoy Gateway and Agent Router configure their rate limit services with it.

pub(crate) mod client;
pub mod messages;
pub mod settings;
