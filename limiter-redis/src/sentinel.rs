//! Redis Sentinel: a connection to the server that the sentinels call the master.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, TlsMode, Value};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::settings::Timeouts;

/// The least time between two questions to the sentinels.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Sentinels(Arc<Inner>);

struct Inner {
    /// One client for each sentinel, so that a silent one delays no other.
    sentinels: Vec<Mutex<SentinelClient>>,
    config: ConnectionManagerConfig,
    /// How long a sentinel may take to find the master.
    timeout: Duration,
    runtime: Handle,
    master: RwLock<Option<(ConnectionAddr, ConnectionManager)>>,
    refreshing: AtomicBool,
}

impl Sentinels {
    /// Returns a connection to the master called `name`, which is made when it is needed. `server` has the credentials and the
    /// database; its address does not count. Call this within a runtime.
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: &str,
        server: &ConnectionInfo,
        timeouts: Timeouts,
    ) -> RedisResult<Self> {
        let node = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(server.redis_settings().clone())
            .set_tcp_settings(timeouts.tcp_settings());
        let node = match server.addr() {
            ConnectionAddr::TcpTls { .. } => node.set_tls_mode(TlsMode::Secure),
            _ => node,
        };
        let client = |sentinel| {
            let node = Some(node.clone());
            SentinelClient::build(vec![sentinel], String::from(name), node, SentinelServerType::Master).map(Mutex::new)
        };
        Ok(Self(Arc::new(Inner {
            sentinels: sentinels.into_iter().map(client).collect::<RedisResult<_>>()?,
            config: timeouts.manager_config(),
            timeout: timeouts.connect + timeouts.response,
            runtime: Handle::current(),
            master: RwLock::default(),
            refreshing: AtomicBool::new(false),
        })))
    }

    /// Asks all sentinels at once for the master, and takes the first that names one.
    pub(crate) async fn refresh_now(&self) -> RedisResult<()> {
        let asked = self.0.sentinels.iter().map(|sentinel| {
            Box::pin(async {
                let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
                let found = async { sentinel.lock().await.async_get_client().await };
                timeout(self.0.timeout, found).await.map_err(late)?
            })
        });
        let (client, _) = select_ok(asked).await?;
        let address = client.get_connection_info().addr().clone();
        let mut master = self.0.master.write().unwrap_or_else(PoisonError::into_inner);
        if master.as_ref().is_none_or(|(known, _)| *known != address) {
            *master = Some((address, ConnectionManager::new_lazy_with_config(client, self.0.config.clone())?));
        }
        Ok(())
    }

    fn master(&self) -> RedisResult<ConnectionManager> {
        let master = self.0.master.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = || RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, "no sentinel has named a master"));
        master.as_ref().map(|(_, master)| master.clone()).ok_or_else(unknown)
    }

    /// Sends a command to the master.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut refresh = RefreshOnDrop { sentinels: self, armed: true };
        let reply = match self.master() {
            Ok(mut master) => master.send_packed_command(cmd).await.and_then(Value::extract_error),
            Err(error) => return Err(error),
        };
        // A former master is gone, or a replica.
        refresh.armed = matches!(&reply, Err(error) if error.is_io_error() || error.code() == Some("READONLY"));
        reply
    }

    /// Sends commands to the master.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        self.master()?.send_packed_commands(commands, 0, commands.len()).await
    }

    /// Asks the sentinels in the background.
    fn refresh(&self) {
        if self.0.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let sentinels = self.clone();
        self.0.runtime.spawn(async move {
            // If none names a master, the next operation tries again.
            let _ = sentinels.refresh_now().await;
            sleep(REFRESH_PAUSE).await;
            sentinels.0.refreshing.store(false, Ordering::Release);
        });
    }
}

/// Asks the sentinels if it is dropped before the master answered: another server may have become the master.
struct RefreshOnDrop<'a> {
    sentinels: &'a Sentinels,
    armed: bool,
}

impl Drop for RefreshOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.sentinels.refresh();
        }
    }
}
