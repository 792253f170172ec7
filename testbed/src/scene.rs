//! A server with its faults.

use std::fmt::{Debug, Display};
use std::io;
use std::time::{Duration, Instant};

/// A server, usually behind a [`Proxy`](crate::Proxy), that fails on command. Its faults do not overlap.
///
/// Its functions may block: [`observe`](crate::observe) and [`soak`](crate::soak) move other tasks away first.
pub trait Scene: Debug {
    /// The faults. A table shows their names.
    type Fault: Copy + Debug + Display;

    /// Returns the URL for the stores under test.
    fn url(&self) -> String;

    /// Returns the URL for a store that checks the logs afterwards, past the proxy. A failover changes it.
    fn direct_url(&self) -> String {
        self.url()
    }

    /// Begins a fault.
    ///
    /// # Errors
    /// If the server cannot be controlled.
    fn begin(&mut self, fault: Self::Fault) -> io::Result<()>;

    /// Ends the fault. The server serves again when this returns, or within a second.
    ///
    /// # Errors
    /// If the server cannot be controlled.
    fn end(&mut self, fault: Self::Fault) -> io::Result<()>;

    /// Returns whether the fault may lose what the server has confirmed. Default: `false`.
    fn loses_data(_fault: Self::Fault) -> bool {
        false
    }
}

/// Blocks until something holds.
///
/// # Errors
/// If it does not hold within 20 s, and if the question fails.
pub fn until(what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let until = Instant::now() + TIMEOUT;
    while !holds()? {
        if Instant::now() > until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {TIMEOUT:?}: {what}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
