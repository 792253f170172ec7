//! Ctrl-C and SIGTERM.

use std::future::pending;
use std::thread;

/// Runs `clean` on Ctrl-C or SIGTERM, then ends the process. Without signal support, signals end the process at once.
pub(crate) fn on_interrupt(clean: impl FnOnce() + Send + 'static) {
    let wait = move || {
        let Ok(runtime) = crate::redis::runtime() else { return };
        let status = runtime.block_on(interrupted());
        drop(runtime);
        clean();
        std::process::exit(status);
    };
    // Without the thread, the keys stay until they expire.
    let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(wait);
}

/// Waits for Ctrl-C or SIGTERM, without signal support forever. Returns the exit status that shells expect.
#[cfg(unix)]
pub(crate) async fn interrupted() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return pending().await };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

#[cfg(not(unix))]
pub(crate) async fn interrupted() -> i32 {
    match tokio::signal::ctrl_c().await {
        Ok(()) => 130,
        Err(_) => pending().await,
    }
}
