//! Envoy's messages as `proto/` declares them, their JSON form, and their service.
//!
//! Fields that the server neither reads nor sends are left out; readers ignore them. Envoy copies raw header bytes into the entries of
//! descriptors, which the protocol declares as text, so these hold bytes. JSON follows proto3: numbers may be texts, units may be
//! numbers, names may be in either case, nulls are defaults, and defaults are not written.
#![allow(missing_docs, reason = "the protocol defines them")]

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::Body;
use hyper::body::Bytes;
use pbjson_types::{Duration, Struct};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tonic::codegen::{BoxFuture, StdError};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::object::{object, objects};

/// The largest message, over gRPC and HTTP.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// The descriptors of all messages, for reflection. The package `generate-protocol` writes them.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

/// The path of [`RateLimitService::should_rate_limit`].
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "or_default")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "objects")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost of the request. 0 means 1.
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "objects")]
    pub entries: Vec<Entry>,
    /// Replaces the policy of the rule for this request.
    #[prost(message, optional, tag = "2")]
    #[serde(deserialize_with = "object")]
    pub limit: Option<RateLimitOverride>,
    /// Replaces the cost of the request. 0 peeks.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "wrapped_number")]
    pub hits_addend: Option<u64>,
    /// Is refused.
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    pub is_negative_hits: bool,
}

/// A key and its value, which may be any bytes.
#[derive(Clone, PartialEq, Eq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "text")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "text")]
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "number")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(deserialize_with = "unit")]
    pub unit: i32,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration, Serialize,
)]
#[serde(rename_all = "UPPERCASE")]
#[repr(i32)]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    #[must_use]
    pub const fn as_str_name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
            Self::Week => "WEEK",
        }
    }

    #[must_use]
    pub fn from_str_name(name: &str) -> Option<Self> {
        let mut all = (0..).map_while(|number| Self::try_from(number).ok());
        all.find(|unit| unit.as_str_name() == name)
    }
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration, Serialize,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i32)]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "named::<Code, _>")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The metadata of the rules that do not deny, in its field `metadata`.
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "is_default")]
    pub dynamic_metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "named::<Code, _>")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_default")]
    pub current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "is_default")]
    pub duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_default")]
    pub requests_per_unit: u32,
    /// The window. Unknown if it is not one unit.
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(
        serialize_with = "named::<Unit, _>",
        skip_serializing_if = "is_default"
    )]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message, Serialize)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn named<E, S>(number: &i32, serializer: S) -> Result<S::Ok, S::Error>
where
    E: TryFrom<i32> + Default + Serialize,
    S: Serializer,
{
    E::try_from(*number)
        .unwrap_or_default()
        .serialize(serializer)
}

/// Reads a value; null is its default.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    or_default(deserializer).map(String::into_bytes)
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = wrapped_number(deserializer)?.unwrap_or(0);
    let too_large = |_| Error::invalid_value(Unexpected::Unsigned(number), &"at most 4294967295");
    number.try_into().map_err(too_large)
}

fn wrapped_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Scalar {
        expected: "a whole number without a sign or a fraction",
        parse: |text| text.parse().ok().filter(|_| !text.starts_with('+')),
    })
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let number = deserializer.deserialize_any(Scalar {
        expected: "SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        parse: |text| Some(Unit::from_str_name(text)? as u64),
    })?;
    // The service refuses numbers of no unit.
    Ok(number.map_or(0, |number| number.try_into().unwrap_or(i32::MAX)))
}

/// Reads a number, or a text that stands for one. Null is none.
struct Scalar {
    expected: &'static str,
    parse: fn(&str) -> Option<u64>,
}

impl Visitor<'_> for Scalar {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_unit<E>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Option<u64>, E> {
        Ok(Some(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
        let number = (self.parse)(text);
        let unknown = || E::invalid_value(Unexpected::Str(text), &self);
        number.map(Some).ok_or_else(unknown)
    }
}

#[tonic::async_trait]
pub trait RateLimitService: Send + Sync + 'static {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status>;
}

/// A [`RateLimitService`] over gRPC.
#[derive(Debug)]
pub struct RateLimitServer<S>(Arc<S>);

impl<S> RateLimitServer<S> {
    pub fn new(service: S) -> Self {
        Self(Arc::new(service))
    }
}

impl<S> Clone for RateLimitServer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> NamedService for RateLimitServer<S> {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<S: RateLimitService> UnaryService<RateLimitRequest> for RateLimitServer<S> {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move { service.should_rate_limit(request).await })
    }
}

impl<S, B> tower::Service<http::Request<B>> for RateLimitServer<S>
where
    S: RateLimitService,
    B: Body<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != SHOULD_RATE_LIMIT {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let grpc = Grpc::new(ProstCodec::default());
            let mut grpc = grpc.apply_max_message_size_config(Some(MAX_MESSAGE), None);
            Ok(grpc.unary(service, request).await)
        })
    }
}
