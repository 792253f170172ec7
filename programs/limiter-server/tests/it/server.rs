//! Starts a server in this process.

use std::io::{self, Write};
use std::mem;
use std::ops::Deref;
use std::path::Path;
use std::thread;

use clap::Parser;
use limiter_server::options::Options;
use limiter_server::run;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tracing::Dispatch;

use crate::ask::Answers;
use crate::client::{Client, Log, folder, shown};

/// A server on threads with a log and metrics of their own.
pub(crate) struct Server {
    client: Client,
    server: Option<run::Server>,
    runtime: Option<Runtime>,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Answers for Server {
    async fn answer(&self, path: &str, body: &str) -> (u16, Value) {
        self.post(path, body)
    }
}

impl Server {
    /// Starts a server with this configuration on free ports.
    pub(crate) fn start(config: &str, args: &[&str]) -> Self {
        let (folder, path) = folder(config);
        Self::start_with(&path, folder, args)
    }

    /// Starts a server with the configuration at `path`, which is in `folder`.
    pub(crate) fn start_with(path: &Path, folder: TempDir, args: &[&str]) -> Self {
        let options = options(path, args);
        let recorder: &'static _ = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let metrics = recorder.handle();
        let log = Log::default();
        let lines = Lines(Log::clone(&log));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone());
        let dispatch = Dispatch::new(subscriber.finish());
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(move || {
                // For as long as the thread.
                mem::forget(metrics::set_default_local_recorder(recorder));
                mem::forget(tracing::dispatcher::set_default(&dispatch));
            })
            .build()
            .unwrap();
        let started = runtime.spawn(async move { run::Server::start(&options).await });
        let server = wait(&runtime, started).unwrap().unwrap();
        let addresses = [&*server.grpc, &server.http, &server.admin];
        let client = Client {
            metrics: Box::new(move || metrics.render()),
            ..Client::new(addresses, folder, log)
        };
        Self {
            client,
            server: Some(server),
            runtime: Some(runtime),
        }
    }

    /// Stops as on SIGTERM.
    pub(crate) fn stop(mut self) {
        let runtime = self.runtime.take().unwrap();
        let stopped = runtime.spawn(self.server.take().unwrap().stop());
        wait(&runtime, stopped).unwrap();
        runtime.shutdown_background();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the options for serving a configuration on free ports.
pub(crate) fn options(config: &Path, args: &[&str]) -> limiter_server::options::Serve {
    let any = "127.0.0.1:0";
    let ports = ["--grpc", any, "--http", any, "--admin", any];
    let ports = ports.chunks(2).filter(|port| !args.contains(&port[0]));
    let ours = ["limiter-server", "--config", shown(config)];
    let all = ours.iter().chain(args).chain(ports.flatten());
    Options::try_parse_from(all).unwrap().serve.unwrap()
}

/// Waits on another thread, because this one may be that of another runtime.
fn wait<F: Future<Output: Send> + Send>(runtime: &Runtime, done: F) -> F::Output {
    thread::scope(|scope| scope.spawn(|| runtime.block_on(done)).join().unwrap())
}

/// Collects what is logged.
#[derive(Clone)]
struct Lines(Log);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        eprintln!("{text}");
        self.0.lock().unwrap().push(text);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
