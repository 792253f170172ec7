//! Ctrl-C and SIGTERM.

use std::future::pending;

/// Waits for Ctrl-C or SIGTERM, without signal support forever. Returns the exit status that shells expect.
#[cfg(unix)]
pub(super) async fn interrupted() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return pending().await };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

#[cfg(not(unix))]
pub(super) async fn interrupted() -> i32 {
    match tokio::signal::ctrl_c().await {
        Ok(()) => 130,
        Err(_) => pending().await,
    }
}
