//! Redis Sentinel: a connection to the server that the sentinels call the master.

use std::sync::{Arc, PoisonError, RwLock};

use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, TlsMode, Value,
};
use tokio::sync::Mutex;

use crate::reconnecting::Reconnecting;
use crate::refresh::{Background, Refresh, first_answer, watched};
use crate::settings::{Runtime, Timeouts};

#[derive(Clone)]
pub(crate) struct Sentinels(Arc<Inner>);

struct Inner {
    /// One client for each sentinel, so that a silent one delays no other.
    sentinels: Vec<Arc<Mutex<SentinelClient>>>,
    timeouts: Timeouts,
    master: RwLock<Option<(ConnectionAddr, Reconnecting)>>,
    background: Background,
    /// Held while the first master is asked for.
    first: Mutex<()>,
}

impl Sentinels {
    /// Returns a connection to the master called `name`, which is made when it is needed. `server` has the credentials and the
    /// database; its address does not count.
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: &str,
        server: &ConnectionInfo,
        timeouts: Timeouts,
        runtime: Runtime,
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
            let client = SentinelClient::build(
                vec![sentinel],
                String::from(name),
                node,
                SentinelServerType::Master,
            )?;
            Ok(Arc::new(Mutex::new(client)))
        };
        Ok(Self(Arc::new(Inner {
            sentinels: sentinels
                .into_iter()
                .map(client)
                .collect::<RedisResult<_>>()?,
            timeouts,
            master: RwLock::default(),
            background: Background::new(runtime),
            first: Mutex::default(),
        })))
    }

    fn known(&self) -> Option<Reconnecting> {
        let master = self.0.master.read().unwrap_or_else(PoisonError::into_inner);
        master.as_ref().map(|(_, master)| master.clone())
    }

    /// Returns the master. The first call asks the sentinels, and those that come meanwhile wait for it.
    async fn master(&self) -> RedisResult<Reconnecting> {
        if let Some(master) = self.known() {
            return Ok(master);
        }
        let _first = self.0.first.lock().await;
        if self.known().is_none() {
            self.refresh_now().await?;
        }
        let unknown = || {
            RedisError::from((
                ErrorKind::MasterNameNotFoundBySentinel,
                "no sentinel has named a master",
            ))
        };
        self.known().ok_or_else(unknown)
    }

    /// Sends a command to the master.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        watched(self, async { self.master().await?.send(cmd).await }).await
    }
}

impl Refresh for Sentinels {
    fn background(&self) -> &Background {
        &self.0.background
    }

    /// Takes the master that the first sentinel names.
    async fn refresh_now(&self) -> RedisResult<()> {
        let ask = |sentinel: Arc<Mutex<SentinelClient>>| async move {
            sentinel.lock().await.async_get_client().await
        };
        let client = first_answer(
            self.0.timeouts.refresh(),
            self.0.sentinels.iter().cloned().map(ask),
        )
        .await?;
        let address = client.get_connection_info().addr().clone();
        let mut master = self
            .0
            .master
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if master.as_ref().is_none_or(|(known, _)| *known != address) {
            let runtime = self.0.background.runtime.clone();
            let connection = Reconnecting::lazy(client, self.0.timeouts, runtime);
            *master = Some((address, connection));
        }
        Ok(())
    }
}
