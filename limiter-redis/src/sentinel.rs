//! Redis Sentinel: a connection to the server that the sentinels call the master.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::time::sleep;

use crate::eviction::Eviction;
use crate::failure::is_refusal;
use crate::first_response::first_response;
use crate::reconnecting::Reconnecting;
use crate::settings::{Address, Runtime, Timeouts, moved_to};

/// How much longer a failed attempt takes, so that further calls share it, and a master that is down costs few questions.
const PAUSE: Duration = Duration::from_millis(100);

struct Sentinel {
    address: String,
    /// A connection for each login, tried in turn. One without a login sends no password to a sentinel that needs none.
    logins: Vec<Reconnecting>,
    /// The name of the master.
    name: String,
    /// How to connect to the master at any address.
    server: ConnectionInfo,
    timeouts: Timeouts,
}

/// Returns a connection to the master called `name`, which is made when it is needed. `server` has the credentials and the
/// database; its address does not count. `login` is for the sentinels; without it, sentinels that require a login get the server's.
pub(crate) fn master_of(
    sentinels: Vec<ConnectionInfo>,
    login: Option<(String, String)>,
    name: &str,
    server: &ConnectionInfo,
    timeouts: Timeouts,
    runtime: Runtime,
) -> RedisResult<Reconnecting> {
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
            Ok(Reconnecting::lazy(client, None, timeouts, runtime.clone()))
        };
        Ok(Arc::new(Sentinel {
            address: info.addr().to_string(),
            logins: logins.iter().map(connection).collect::<RedisResult<_>>()?,
            name: name.to_owned(),
            server: server.clone(),
            timeouts,
        }))
    };
    let sentinels = sentinels.into_iter().map(sentinel);
    let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
    let connect = move || -> redis::RedisFuture<'static, _> {
        let asked = sentinels.clone().into_iter().map(Sentinel::connect);
        Box::pin(async move {
            let master = first_response(timeouts.refresh(), asked).await;
            if master.is_err() {
                sleep(PAUSE).await;
            }
            master
        })
    };
    let eviction = Eviction::of(name.to_owned());
    Ok(Reconnecting::new(
        connect,
        Some(eviction),
        timeouts,
        runtime,
    ))
}

impl Sentinel {
    /// Connects to the master, if the server is one.
    async fn connect(self: Arc<Self>) -> RedisResult<MultiplexedConnection> {
        let client = Client::open(moved_to(&self.server, self.master().await?))?;
        let mut master = self.timeouts.connect_to(&client).await?;
        let role = master.req_packed_command(&redis::cmd("ROLE")).await;
        match role.and_then(Value::extract_error) {
            Ok(Value::Array(role)) if !is_master(&role) => Err(unknown()),
            // A user may lack the permission for it.
            Err(error) if error.code() != Some("NOPERM") => Err(error),
            _ => Ok(master),
        }
    }

    /// Asks for the address of the master.
    async fn master(&self) -> RedisResult<Address> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
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
