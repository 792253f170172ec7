//! Redis Sentinel: a connection to the server that the sentinels call the master.

use std::sync::{Arc, PoisonError, RwLock};

use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::sync::Mutex;

use crate::failure::is_refusal;
use crate::reconnecting::Reconnecting;
use crate::refresh::{Background, Refresh, first_answer, watched};
use crate::settings::{Address, Runtime, Timeouts, moved_to};

#[derive(Clone)]
pub(crate) struct Sentinels(Arc<Inner>);

struct Inner {
    sentinels: Vec<Sentinel>,
    /// The name of the master.
    name: String,
    /// How to connect to the master at any address.
    server: ConnectionInfo,
    timeouts: Timeouts,
    master: RwLock<Option<(Address, Reconnecting)>>,
    background: Background,
    /// Held while the first master is asked for.
    first: Mutex<()>,
}

#[derive(Clone)]
struct Sentinel {
    address: String,
    /// A connection for each login, tried in turn. One without a login sends no password to a sentinel that needs none.
    logins: Vec<Reconnecting>,
}

impl Sentinels {
    /// Returns a connection to the master called `name`, which is made when it is needed. `server` has the credentials and the
    /// database; its address does not count. `login` is for the sentinels; without it, sentinels that require a login get the server's.
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        login: Option<(String, String)>,
        name: &str,
        server: ConnectionInfo,
        timeouts: Timeouts,
        runtime: Runtime,
    ) -> RedisResult<Self> {
        let redis = server.redis_settings();
        let user = redis.username().unwrap_or_default();
        let logins = match (login, redis.password()) {
            (Some((user, pass)), _) => vec![with_login(&user, &pass)],
            (None, Some(pass)) => vec![RedisConnectionInfo::default(), with_login(user, pass)],
            (None, None) => vec![RedisConnectionInfo::default()],
        };
        let sentinel = |info: ConnectionInfo| {
            let connection = |login: &RedisConnectionInfo| {
                let client = Client::open(info.clone().set_redis_settings(login.clone()))?;
                Ok(Reconnecting::lazy(client, timeouts, runtime.clone()))
            };
            Ok(Sentinel {
                address: info.addr().to_string(),
                logins: logins.iter().map(connection).collect::<RedisResult<_>>()?,
            })
        };
        Ok(Self(Arc::new(Inner {
            sentinels: sentinels
                .into_iter()
                .map(sentinel)
                .collect::<RedisResult<_>>()?,
            name: name.to_owned(),
            server,
            timeouts,
            master: RwLock::default(),
            background: Background::new(runtime),
            first: Mutex::default(),
        })))
    }

    fn known(&self) -> Option<(Address, Reconnecting)> {
        let master = self.0.master.read().unwrap_or_else(PoisonError::into_inner);
        master.clone()
    }

    /// Returns the master. The first call asks the sentinels; calls in the meantime wait for it.
    async fn master(&self) -> RedisResult<Reconnecting> {
        if let Some((_, master)) = self.known() {
            return Ok(master);
        }
        let _first = self.0.first.lock().await;
        if self.known().is_none() {
            self.refresh_now().await?;
        }
        self.known().map(|(_, master)| master).ok_or_else(unknown)
    }

    /// Sends a command to the master.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        watched(self, async { self.master().await?.send(cmd).await }).await
    }

    /// Asks a sentinel for the master, and the master whether it is one.
    async fn ask(self, sentinel: Sentinel) -> RedisResult<(Address, Reconnecting)> {
        let address = sentinel.master(&self.0.name).await?;
        let known = self.known().filter(|(known, _)| *known == address);
        let master = match known {
            Some((_, master)) => master,
            None => {
                let client = Client::open(moved_to(&self.0.server, address.clone()))?;
                let runtime = self.0.background.runtime.clone();
                Reconnecting::lazy(client, self.0.timeouts, runtime)
            }
        };
        match master.send(&redis::cmd("ROLE")).await {
            Ok(Value::Array(role)) if !is_master(&role) => Err(unknown()),
            // A user may lack the permission for it.
            Err(error) if error.code() != Some("NOPERM") => Err(error),
            _ => Ok((address, master)),
        }
    }
}

impl Sentinel {
    /// Asks for the address of the master called `name`.
    async fn master(&self, name: &str) -> RedisResult<Address> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let mut reply = Err(unknown());
        for login in &self.logins {
            reply = login.send(&cmd).await;
            if !reply.as_ref().is_err_and(is_refusal) {
                break;
            }
        }
        let reply = reply.map_err(|error| match is_refusal(&error) {
            true => {
                let text = "a sentinel, not the server, refuses the login";
                let reason = format!("{}: {error}", self.address);
                (ErrorKind::AuthenticationFailed, text, reason).into()
            }
            false => error,
        })?;
        let address: Option<Address> = redis::from_redis_value(reply)?;
        address.ok_or_else(unknown)
    }
}

fn with_login(user: &str, pass: &str) -> RedisConnectionInfo {
    let login = RedisConnectionInfo::default().set_password(pass);
    match user {
        "" => login,
        _ => login.set_username(user),
    }
}

fn is_master(role: &[Value]) -> bool {
    matches!(role.first(), Some(Value::BulkString(role)) if role == b"master")
}

fn unknown() -> RedisError {
    let text = "no sentinel returned a master";
    (ErrorKind::MasterNameNotFoundBySentinel, text).into()
}

impl Refresh for Sentinels {
    fn background(&self) -> &Background {
        &self.0.background
    }

    /// Takes the master that the first sentinel names.
    async fn refresh_now(&self) -> RedisResult<()> {
        let asked = self.0.sentinels.iter().cloned();
        let asked = asked.map(|sentinel| self.clone().ask(sentinel));
        let master = first_answer(self.0.timeouts.refresh(), asked).await?;
        *self
            .0
            .master
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(master);
        Ok(())
    }
}
