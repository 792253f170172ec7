//! Ctrl-C and SIGTERM.

use std::thread;

/// Runs `clean` on Ctrl-C or SIGTERM, then ends the process. Without signal support, signals end the process at once.
pub(crate) fn on_interrupt(clean: impl FnOnce() + Send + 'static) {
    let wait = move || {
        let Ok(runtime) = crate::redis::runtime() else { return };
        let Some(status) = runtime.block_on(interrupted()) else { return };
        drop(runtime);
        clean();
        std::process::exit(status);
    };
    // Without the thread, the keys stay until they expire.
    let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(wait);
}

/// Waits for Ctrl-C or SIGTERM. Returns the exit status that shells expect; `None` without signal support.
#[cfg(unix)]
pub(crate) async fn interrupted() -> Option<i32> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).ok()?;
    let mut terminate = signal(SignalKind::terminate()).ok()?;
    tokio::select! {
        _ = interrupt.recv() => Some(130),
        _ = terminate.recv() => Some(143),
    }
}

#[cfg(not(unix))]
pub(crate) async fn interrupted() -> Option<i32> {
    tokio::signal::ctrl_c().await.ok().map(|()| 130)
}
