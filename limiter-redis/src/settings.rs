//! The addresses and the settings of the connections that the store opens itself.

use std::time::Duration;

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisResult};
use tokio::runtime::Handle;

/// A server's host and port.
pub(crate) type Address = (String, u16);

/// The certificates for TLS. By default, the client has none, and the system's authorities verify servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates(#[cfg(feature = "tls")] pub(crate) Option<redis::TlsCertificates>);

/// Returns how to connect to a URL.
pub(crate) fn connection_info(
    url: &str,
    timeouts: Timeouts,
    certificates: &Certificates,
) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let info = info.set_tcp_settings(timeouts.tcp_settings());
    #[cfg(feature = "tls")]
    if let Some(certificates) = &certificates.0 {
        let client = Client::build_with_tls(info, certificates.clone())?;
        return Ok(client.get_connection_info().clone());
    }
    let _ = certificates;
    Ok(info)
}

/// Returns how to connect to another address in the same way.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) fn moved_to(info: &ConnectionInfo, (host, port): Address) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

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

    /// Connects to a server. Each operation has its own response timeout.
    pub(crate) async fn connect_to(self, client: &Client) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect))
            .set_response_timeout(None);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

/// Where connections run when a call comes from outside a runtime, or from another one.
#[derive(Clone)]
pub(crate) struct Runtime(Handle);

impl Runtime {
    /// Returns the current runtime. `None` outside a runtime.
    pub(crate) fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self)
    }

    /// Spawns a task on the caller's runtime: the runtime that connected may have ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Handle::try_current()
            .unwrap_or_else(|_| self.0.clone())
            .spawn(task);
    }
}
