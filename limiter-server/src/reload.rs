//! Applies changes of the configuration while the server runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use notify::{PollWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{error, info};

use crate::config::Errors;
use crate::rules::Rules;
use crate::service::Service;

const RELOADS: &str = "limiter_server_config_reloads_total";
const VALID: &str = "limiter_server_config_valid";

/// How often the files are compared with what they were.
const POLL: Duration = Duration::from_millis(100);
/// How long files must stay unchanged. Editors and copies change them in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// How long a reload waits for files that never stay unchanged.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Reloads the rules of a service when the files at `path` change, and on SIGHUP. The future never ends; dropping it ends the watch.
///
/// Looks at the files instead of asking the system for events, because symbolic links on the way to them may change, and
/// network folders have no events. Errors are logged, and both outcomes are counted.
///
/// # Errors
/// If the files cannot be watched, or SIGHUP cannot be received. Must be called within a tokio runtime.
pub fn watch(path: PathBuf, service: Arc<Service>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    describe_counter!(RELOADS, Unit::Count, "Readings of a changed configuration, by result.");
    describe_gauge!(VALID, Unit::Count, "1 if the configuration as it is now has no errors, otherwise 0.");
    gauge!(VALID).set(1);
    let hangups = signal(SignalKind::hangup())?;
    let changed = Arc::new(Notify::new());
    let noticed = Arc::clone(&changed);
    let options = notify::Config::default().with_poll_interval(POLL).with_compare_contents(true);
    let mut watcher = PollWatcher::new(move |_| noticed.notify_one(), options).map_err(io::Error::other)?;
    watcher.watch(&path, RecursiveMode::NonRecursive).map_err(io::Error::other)?;
    // The files may have changed since the service read them.
    changed.notify_one();
    let last = Ok(service.rules().fingerprint());
    Ok(Reloader { path, last, service, changed, _watcher: watcher }.run(hangups))
}

struct Reloader {
    path: PathBuf,
    /// The fingerprint or the errors of the last reading.
    last: Result<u64, Errors>,
    service: Arc<Service>,
    changed: Arc<Notify>,
    /// Ends with the value.
    _watcher: PollWatcher,
}

impl Reloader {
    async fn run(mut self, mut hangups: Signal) {
        loop {
            let forced = wait(&self.changed, &mut hangups).await;
            let reading = spawn_blocking(move || {
                self.reload(forced);
                self
            });
            self = match reading.await {
                Ok(reloader) => reloader,
                Err(error) => return error!("changes of the configuration have no effect from now on: {error}"),
            };
        }
    }

    /// Reads the configuration, and applies it if it has changed or if `forced`.
    fn reload(&mut self, forced: bool) {
        let read = Rules::read(&self.path, self.service.store().shared(), Some(&self.service.rules()));
        let last = read.as_ref().map(Rules::fingerprint).map_err(Clone::clone);
        if last == self.last && !forced {
            return;
        }
        gauge!(VALID).set(u8::from(read.is_ok()));
        let result = match &read {
            Ok(_) => {
                info!("reloaded the configuration {}", self.path.display());
                "applied"
            }
            Err(Errors(errors)) => {
                errors.iter().for_each(|line| error!("{line}"));
                error!("the configuration has {} errors, so the rules stay as they were", errors.len());
                "refused"
            }
        };
        self.service.reload(read);
        counter!(RELOADS, "result" => result).increment(1);
        self.last = last;
    }
}

/// Waits for a change and for quiet after it, or for SIGHUP. Returns whether it was SIGHUP.
async fn wait(changed: &Notify, hangups: &mut Signal) -> bool {
    let change = async {
        changed.notified().await;
        let quiet = async { while timeout(QUIET, changed.notified()).await.is_ok() {} };
        let _ = timeout(MAX_WAIT, quiet).await;
    };
    tokio::select! {
        Some(()) = hangups.recv() => true,
        () = change => false,
    }
}
