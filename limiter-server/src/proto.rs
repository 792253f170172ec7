//! Envoy's messages, generated from `proto/`. Fields that the server neither reads nor sends are left out; readers ignore them.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::doc_markdown)]

/// The descriptors of all messages, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

include!(concat!(env!("OUT_DIR"), "/proto.rs"));

pub use envoy::config::core::v3::HeaderValue;
pub use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
pub use envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use envoy::service::ratelimit::v3::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
pub use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use envoy::r#type::v3::RateLimitUnit;
