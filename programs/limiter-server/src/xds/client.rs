//! The client: connects, receives rules, and accepts or refuses them.

use std::fs;
use std::hash::BuildHasher;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use foldhash::fast::RandomState;
use futures_util::stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tonic::Request;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;
use tracing::{info, warn};

use super::messages::{Any, DiscoveryRequest, DiscoveryResponse, RateLimitConfig, Status};
use super::settings::{Settings, TlsFiles};
use crate::config::on_a_line;
use crate::tls::{certificates, private_key};

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The code of gRPC for an invalid argument.
const INVALID: i32 = 3;
/// The largest response.
const MAX_RESPONSE: usize = 64 << 20;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How often an idle connection is tested. Servers in Go end a connection that pings more often than every five minutes.
const PING: Duration = Duration::from_secs(330);
const PONG: Duration = Duration::from_secs(20);
/// How long an idle connection waits for the system's first probe.
const PROBE: Duration = Duration::from_secs(30);
/// The pauses before connecting again: they double from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long the refusal of a response waits that was refused before. Control planes send such a response again at once.
const REFUSED: Duration = Duration::from_secs(1);

/// Receives rules.
pub(crate) struct Client {
    settings: Settings,
    /// The last response without its version and nonce, and why it was refused.
    last: Option<(DiscoveryResponse, Result<(), String>)>,
    pause: Duration,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            last: None,
            pause: PAUSES.0,
        }
    }

    /// Applies all rules that arrive, or why they cannot be read, and connects again for ever. `apply` returns why it refuses them.
    pub(crate) async fn follow<F>(
        mut self,
        apply: impl Fn(Result<Vec<RateLimitConfig>, String>) -> F,
    ) where
        F: Future<Output = Result<(), String>>,
    {
        let server = self.settings.server.clone();
        loop {
            let error = match self.connection(&apply).await {
                Ok(()) => anyhow!("the stream has ended"),
                Err(error) => error,
            };
            let part = RandomState::default().hash_one(0) % 1_000;
            let pause = self.pause.mul_f64(0.5 + part as f64 / 2_000.0);
            warn!("the control plane {server}, next attempt in {pause:.1?}: {error:#}");
            sleep(pause).await;
            self.pause = (self.pause * 2).min(PAUSES.1);
        }
    }

    /// Serves one connection until it ends.
    async fn connection<F>(
        &mut self,
        apply: &impl Fn(Result<Vec<RateLimitConfig>, String>) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), String>>,
    {
        let server = &self.settings.server;
        let scheme = self.settings.tls.as_ref().map_or("http", |_| "https");
        let mut endpoint = Endpoint::try_from(format!("{scheme}://{server}"))?
            .tcp_keepalive(Some(PROBE))
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        if let Some(files) = self.settings.tls.clone() {
            endpoint = endpoint.tls_config(spawn_blocking(move || tls(&files)).await??)?;
        }
        let channel = timeout(CONNECT, endpoint.connect()).await??;
        info!("connected to the control plane {server}");
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
        let (requests, receiver) = mpsc::channel(1);
        let first = self.request(String::new(), String::new());
        requests.send(first).await?;
        let stream = stream::unfold(receiver, async |mut requests| {
            Some((requests.recv().await?, requests))
        });
        let mut request = Request::new(stream);
        let headers = self.settings.headers.iter().cloned();
        *request.metadata_mut() = MetadataMap::from_headers(headers.collect());
        grpc.ready().await?;
        let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        let path = PathAndQuery::from_static(PATH);
        let responses = grpc.streaming(request, path, codec).await;
        let mut responses = responses.map_err(failed)?.into_inner();
        let mut accepted = String::new();
        while let Some(response) = responses.message().await.map_err(failed)? {
            self.pause = PAUSES.0;
            let (version, nonce) = (response.version_info.clone(), response.nonce.clone());
            let refused = self.decide(response, apply).await.err();
            if refused.is_none() {
                accepted = version;
            }
            let mut request = self.request(accepted.clone(), nonce);
            request.error_detail = refused.map(|message| Status {
                code: INVALID,
                message,
            });
            requests.send(request).await?;
        }
        Ok(())
    }

    fn request(&self, version_info: String, response_nonce: String) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info,
            node: Some(self.settings.node.clone()),
            type_url: TYPE.to_owned(),
            response_nonce,
            error_detail: None,
        }
    }

    /// Applies the rules of a response, unless it is the last one again.
    async fn decide<F>(
        &mut self,
        mut response: DiscoveryResponse,
        apply: &impl Fn(Result<Vec<RateLimitConfig>, String>) -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = Result<(), String>>,
    {
        (response.version_info, response.nonce) = Default::default();
        // Control planes in Go send the same resources in a different order each time.
        response.resources.sort_by(|a, b| a.value.cmp(&b.value));
        if let Some((last, verdict)) = &self.last
            && *last == response
        {
            if verdict.is_err() {
                sleep(REFUSED).await;
            }
            return verdict.clone();
        }
        let verdict = apply(configs(&response)).await;
        self.last = Some((response, verdict.clone()));
        verdict
    }
}

fn configs(response: &DiscoveryResponse) -> Result<Vec<RateLimitConfig>, String> {
    expect_type(&response.type_url)?;
    let config = |resource: &Any| {
        expect_type(&resource.type_url)?;
        let len = resource.value.len();
        RateLimitConfig::decode(&*resource.value)
            .map_err(|error| format!("a resource of {len} B: {error}"))
    };
    response.resources.iter().map(config).collect()
}

fn expect_type(found: &str) -> Result<(), String> {
    match found {
        TYPE => Ok(()),
        _ => Err(format!(
            "expected resources of the type {TYPE}, found {found:?}"
        )),
    }
}

/// Reads the files for TLS. tonic takes a file without certificates, and its errors name no file.
fn tls(files: &TlsFiles) -> anyhow::Result<ClientTlsConfig> {
    let read = |file: &Path| fs::read(file).with_context(|| file.display().to_string());
    certificates(&files.ca)?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&files.ca)?));
    if let Some((cert, key)) = &files.client {
        certificates(cert)?;
        private_key(key)?;
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &files.name {
        tls = tls.domain_name(name);
    }
    Ok(tls)
}

/// Returns the code and the text of a failure, without the header fields around them.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes a value")]
fn failed(status: tonic::Status) -> anyhow::Error {
    anyhow!("{:?}: {}", status.code(), on_a_line(status.message()))
}
