//! Applies changes of the configuration while the server runs.

mod received;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

pub(crate) use self::received::Received;
use crate::config::{self, Errors};
use crate::rules::RuleSet;
use crate::service::Service;

const RELOADS: &str = "limiter_server_config_reloads_total";
const VALID: &str = "limiter_server_config_valid";

/// How often the files are checked for changes.
const POLL: Duration = Duration::from_millis(100);
/// How long files must stay unchanged. Editors and copies change them in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// How long a reload waits for files that never stay unchanged.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// How long the next attempt waits after a reading that panicked.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a reading that hangs is logged.
const SLOW: Duration = Duration::from_secs(10);

/// Reloads the rules of a service when the files at `path` change, and on SIGHUP. The future never ends; dropping it ends the watch.
///
/// Looks at the files instead of asking the system for events, because symbolic links on the way to them may change, and
/// network folders have no events. Reads only files that changed. Errors are logged, and both outcomes are counted.
///
/// # Errors
/// If SIGHUP cannot be received. Must be called within a tokio runtime.
pub fn watch(
    path: PathBuf,
    service: Arc<Service>,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    describe();
    let watch = Watch::new(vec![path.clone()], Some(service.rules().stamp))?;
    Ok(run(watch, move || reload(&path, &service)))
}

/// Prepares the metrics of reloads.
fn describe() {
    describe_counter!(RELOADS, Unit::Count, "Configuration reloads, by result.");
    describe_gauge!(
        VALID,
        Unit::Count,
        "1 if the current configuration has no errors, otherwise 0."
    );
    gauge!(VALID).set(1);
}

/// Reads the configuration again whenever it may have changed. A reading that panics is tried again.
async fn run(mut watch: Watch, read: impl Fn() + Clone + Send + 'static) {
    loop {
        watch.wait().await;
        if let Err(error) = patiently(read.clone()).await {
            gauge!(VALID).set(0);
            error!("cannot read the configuration: {error}");
            sleep(PAUSE).await;
            watch.last = None;
        }
    }
}

/// Reads secrets, such as certificates, again when their files change, and on SIGHUP. The future never ends.
///
/// # Errors
/// The errors of [`watch`].
pub(crate) fn watch_secret(
    name: &'static str,
    files: Vec<PathBuf>,
    read: impl Fn() -> anyhow::Result<()> + Clone + Send + 'static,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut watch = Watch::new(files, None)?;
    Ok(async move {
        loop {
            watch.wait().await;
            match patiently(read.clone()).await {
                Ok(Ok(())) => info!("read {name}"),
                Ok(Err(error)) => error!("cannot reload {name}; the old stays in use: {error:#}"),
                Err(error) => error!("cannot reload {name}; the old stays in use: {error}"),
            }
        }
    })
}

/// Reads files, away from the threads that decide. A folder over the network may hang, and a pipe may have no writer.
pub(crate) async fn patiently<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let mut reading = spawn_blocking(read);
    loop {
        match timeout(SLOW, &mut reading).await {
            Ok(read) => return read,
            Err(_) => error!("reading files hangs: a disk or a pipe does not respond"),
        }
    }
}

/// Reads the configuration, and applies it if it has no errors.
fn reload(path: &Path, service: &Service) {
    let read = RuleSet::read(path, service.store().shared(), Some(&service.rules()));
    apply(
        service,
        read,
        &format!("the configuration {}", path.display()),
    );
}

/// Applies rules if they have no errors. Only then do the metrics and the log report them.
fn apply(service: &Service, read: Result<RuleSet, Errors>, source: &str) {
    let before = service.rules();
    let result = if read.is_ok() { "success" } else { "failure" };
    service.reload(read);
    counter!(RELOADS, "result" => result).increment(1);
    let errors = service.errors();
    gauge!(VALID).set(u8::from(errors.is_none()));
    if let Some(Errors(errors)) = errors.as_deref() {
        errors.iter().for_each(|line| error!("{line}"));
        error!(
            "the configuration has {} errors; the old rules remain in force",
            errors.len()
        );
    } else {
        let rules = service.rules();
        for warning in service.warnings() {
            warn!("{warning}");
        }
        let shares = service.store().memory().is_none();
        for warning in rules.risky_changes(&before, shares) {
            warn!("{warning}");
        }
        info!("reloaded {source}");
    }
}

/// Notices changes of files, and SIGHUP.
struct Watch {
    paths: Vec<PathBuf>,
    /// The stamp of the files; `None` reads them in any case.
    last: Option<u64>,
    hangups: Signal,
}

impl Watch {
    fn new(paths: Vec<PathBuf>, last: Option<u64>) -> io::Result<Self> {
        Ok(Self {
            paths,
            last,
            hangups: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a change and for quiet after it, or for SIGHUP.
    async fn wait(&mut self) {
        let Self {
            paths,
            last,
            hangups,
        } = self;
        let change = async {
            changed(paths, last).await;
            let quiet = async { while timeout(QUIET, changed(paths, last)).await.is_ok() {} };
            let _ = timeout(MAX_WAIT, quiet).await;
        };
        tokio::select! {
            Some(()) = hangups.recv() => {}
            () = change => {}
        }
    }
}

/// Waits until the files have another stamp.
async fn changed(paths: &[PathBuf], last: &mut Option<u64>) {
    loop {
        let asked = paths.to_owned();
        let stamp = patiently(move || config::stamp(&asked)).await.ok();
        if stamp.is_some() && *last != stamp {
            *last = stamp;
            return;
        }
        sleep(POLL).await;
    }
}
