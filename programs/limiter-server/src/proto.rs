//! Envoy's messages, generated from the folder `proto` by the package `generate-protocol`. Fields that the server neither reads nor sends are left out; readers ignore them.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::doc_markdown)]

/// The descriptors of all messages, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

use serde::{Deserialize, Serialize};

use crate::object::Object;

include!("proto/envoy.rs");

pub use envoy::config::core::v3::HeaderValue;
pub use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use envoy::r#type::v3::RateLimitUnit;

/// The JSON form of an [`Entry`].
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EntryText {
    key: String,
    value: String,
}

impl From<Object<EntryText>> for Entry {
    fn from(Object(EntryText { key, value }): Object<EntryText>) -> Self {
        Self {
            key: key.into_bytes(),
            value: value.into_bytes(),
        }
    }
}

impl From<Entry> for EntryText {
    fn from(Entry { key, value }: Entry) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            key: text(key),
            value: text(value),
        }
    }
}
