//! The addresses and the settings of the connections that the store opens itself.

use std::time::Duration;

use redis::aio::ConnectionManagerConfig;
use redis::io::tcp::TcpSettings;

/// A server's host and port.
pub(crate) type Address = (String, u16);

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

impl Timeouts {
    /// Returns the timeout for asking one server for the others' addresses.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(crate) fn refresh(self) -> Duration {
        self.connect + self.response
    }

    /// Returns the settings of the TCP socket.
    pub(crate) fn tcp_settings(self) -> TcpSettings {
        let settings = TcpSettings::default().set_nodelay(true);
        // Without this, a connection whose peer vanished silently stays open for many minutes.
        #[cfg(target_os = "linux")]
        let settings =
            settings.set_user_timeout((self.connect + self.response).max(Duration::from_secs(1)));
        settings
    }

    /// Returns the settings for a connection that reconnects. A refused connection fails the operation immediately; the next
    /// operation tries again.
    pub(crate) fn manager_config(self) -> ConnectionManagerConfig {
        ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(self.connect))
            .set_response_timeout(None)
    }
}
