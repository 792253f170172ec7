//! A server with its faults.

use std::fmt::Debug;
use std::io;

/// A server, usually behind a [`Proxy`](crate::Proxy), that fails on command. Its faults do not overlap.
///
/// Its functions may block: [`observe`](crate::observe) and [`soak`](crate::soak) move other tasks elsewhere first.
pub trait Scene: Debug {
    /// The faults.
    type Fault: Copy + Debug;

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

    /// Returns whether the fault may lose confirmed writes. Default: `false`.
    fn loses_data(_fault: Self::Fault) -> bool {
        false
    }
}
