//! Envoy's messages, generated from `proto/`. Fields that the server neither reads nor sends are left out; readers ignore them.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::doc_markdown)]

/// The descriptors of all messages, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Declares the module of a package.
macro_rules! package {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        include!(concat!(env!("OUT_DIR"), "/", $package, ".serde.rs"));
    };
}

/// The paths between the generated modules follow the packages.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                package!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    package!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                package!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            package!("envoy.r#type.v3");
        }
    }
}

pub use envoy::config::core::v3::HeaderValue;
pub use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
pub use envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use envoy::service::ratelimit::v3::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
pub use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use envoy::r#type::v3::RateLimitUnit;
