//! Applies changes of the configuration while the server runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::config::{Config, Errors};

mod places;

use places::Places;

const RELOADS: &str = "limiter_server_config_reloads_total";
const VALID: &str = "limiter_server_config_valid";

/// How long files must stay unchanged. Editors and copies change them in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// How often a changed path is followed at once. Later changes are noticed by the watch.
const MAX_REWATCHES: usize = 8;

/// Calls `apply` for each configuration at `path` after `config`, or its errors: when its files change, when a symbolic link on the
/// way to them changes, and on SIGHUP. The future never ends; dropping it ends the watch.
///
/// Errors are logged, and both outcomes are counted.
///
/// # Errors
/// If SIGHUP cannot be received. Must be called within a tokio runtime.
pub fn watch(
    path: PathBuf,
    config: &Config,
    apply: impl Fn(Result<Config, Errors>) + Send + 'static,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    describe_counter!(RELOADS, Unit::Count, "Readings of a changed configuration, by result.");
    describe_gauge!(VALID, Unit::Count, "1 if the configuration as it is now has no errors, otherwise 0.");
    gauge!(VALID).set(1);
    let hangups = signal(SignalKind::hangup())?;
    let last = Ok(config.fingerprint);
    let mut reloader =
        Reloader { path: std::path::absolute(path)?, last, watcher: None, apply, changed: Arc::default() };
    // The files may have changed since `config` was read.
    reloader.reload(false);
    Ok(reloader.run(hangups))
}

struct Reloader<F> {
    path: PathBuf,
    /// The fingerprint or the errors of the last reading.
    last: Result<u64, Errors>,
    watcher: Option<RecommendedWatcher>,
    changed: Arc<Notify>,
    apply: F,
}

impl<F: Fn(Result<Config, Errors>) + Send + 'static> Reloader<F> {
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
        // First, so that a change while reading is not missed.
        self.rewatch();
        let read = Config::read(&self.path);
        let last = read.as_ref().map(|config| config.fingerprint).map_err(Clone::clone);
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
        (self.apply)(read);
        counter!(RELOADS, "result" => result).increment(1);
        self.last = last;
    }

    /// Watches the places as they are now. A folder may have been replaced by another one of the same name.
    fn rewatch(&mut self) {
        let warn = |error| warn!("a change of the configuration may need SIGHUP: {error}");
        // A link may change before it is watched.
        for _ in 0..MAX_REWATCHES {
            let (places, changed) = (Arc::new(Places::of(&self.path)), Arc::clone(&self.changed));
            let watched = Arc::clone(&places);
            let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
                if event.map_or(true, |event| concerns(&watched, &event)) {
                    changed.notify_one();
                }
            });
            self.watcher = watcher.map_err(warn).ok();
            for folder in &places.folders {
                let watched = self.watcher.as_mut().map(|watcher| watcher.watch(folder, RecursiveMode::NonRecursive));
                watched.transpose().map_err(warn).ok();
            }
            if Places::of(&self.path) == *places {
                break;
            }
        }
    }
}

fn concerns(places: &Places, event: &Event) -> bool {
    // Reading a file is not a change.
    event.need_rescan() || (!matches!(event.kind, EventKind::Access(_)) && places.concern(&event.paths))
}

/// Waits for a change and for quiet after it, or for SIGHUP. Returns whether it was SIGHUP.
async fn wait(changed: &Notify, hangups: &mut Signal) -> bool {
    let quiet = async {
        changed.notified().await;
        while timeout(QUIET, changed.notified()).await.is_ok() {}
    };
    tokio::select! {
        Some(()) = hangups.recv() => true,
        () = quiet => false,
    }
}
