//! A single server process.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use redis::{
    Client, Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo,
    ToRedisArgs,
};
use tempfile::TempDir;

use super::keeper::Keeper;

/// The timeout of commands, and of [`until`].
const TIMEOUT: Duration = Duration::from_secs(20);
/// The offset of a cluster node's bus port.
const BUS: u16 = 10_000;

/// The script of a [`Keeper`]. Prints nothing if there is no server binary.
const KEEPER: &str = r#"program=${LIMITER_REDIS_SERVER:-$(command -v redis-server || command -v valkey-server)} || exit
"$program" "$@" </dev/null >/dev/null 2>&1 & pid=$!; echo $pid
keep=$(cat); kill -9 $pid 2>/dev/null; wait"#;

/// A Redis server for one test. Dropping it stops the server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    keeper: Option<Keeper>,
    pid: u32,
}

impl Server {
    /// Starts a server.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments, for example `["--maxmemory", "2mb"]`.
    pub fn start_with(args: &[&str]) -> io::Result<Self> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let dir = tempfile::Builder::new()
                .prefix("limiter-redis-")
                .tempdir()?;
            let mut server = Self {
                port: free_port()?,
                args: args.clone(),
                dir,
                keeper: None,
                pid: 0,
            };
            match server.launch() {
                // Another process may have taken the port in the meantime.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts < 10 => {}
                launched => return launched.map(|()| server),
            }
        }
    }

    /// Starts a replica of this server and waits until it is in sync.
    pub fn start_replica(&self) -> io::Result<Self> {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &self.port.to_string()])?;
        until("the replica is in sync", || {
            Ok(replica
                .info("replication")?
                .contains("master_link_status:up"))
        })?;
        Ok(replica)
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the path of the server's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Sends one command over a new connection, for example `command::<i64>(&["DBSIZE"])`. The reply is ignored for `()`.
    pub fn command<T: FromRedisValue>(&self, args: impl ToRedisArgs) -> io::Result<T> {
        let query = || {
            let server =
                ConnectionAddr::Tcp("127.0.0.1".to_owned(), self.port).into_connection_info()?;
            // Otherwise the client introduces itself, which is a command that tests would count.
            let server =
                server.set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
            let mut connection = Client::open(server)?.get_connection_with_timeout(TIMEOUT)?;
            connection.set_read_timeout(Some(TIMEOUT))?;
            connection.set_write_timeout(Some(TIMEOUT))?;
            Cmd::new().arg(args).query(&mut connection)
        };
        query().map_err(io::Error::other)
    }

    /// Returns a section of `INFO`.
    pub fn info(&self, section: &str) -> io::Result<String> {
        self.command(&["INFO", section])
    }

    /// Returns a number from `INFO`, for example `info_number("replication", "master_repl_offset")`; 0 if it is
    /// missing.
    pub fn info_number(&self, section: &str, name: &str) -> io::Result<u64> {
        let info = self.info(section)?;
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value
            .and_then(|value| value.trim().parse().ok())
            .unwrap_or(0))
    }

    /// Kills the server with `SIGKILL`.
    pub fn kill(&mut self) {
        self.keeper = None;
    }

    /// Restarts the server on the same port with its persisted data. By default there is none.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.launch()
    }

    /// Stops the server with `SIGSTOP`, so that it hangs with its connections open.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("-STOP")
    }

    /// Resumes the server after a [`pause`](Self::pause).
    pub fn resume(&self) -> io::Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        let status = Command::new("kill")
            .args([signal, &self.pid.to_string()])
            .status()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("kill {signal}: {status}")))
        }
    }

    fn launch(&mut self) -> io::Result<()> {
        let port = self.port.to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1"]
            .into_iter()
            .chain(["--protected-mode", "no", "--save", "", "--appendonly", "no"])
            .chain(["--daemonize", "no", "--logfile", "log"])
            .chain(["--unixsocket", "redis.sock"])
            .chain(self.args.iter().map(String::as_str));
        let (keeper, pid) = Keeper::start(self.dir.path(), KEEPER, args)?;
        self.keeper = Some(keeper);
        let missing = |_| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "these tests need a Redis or Valkey server: install it (Debian, Ubuntu: apt-get install redis-server; \
                 Fedora: dnf install valkey; macOS: brew install redis) or name its program in LIMITER_REDIS_SERVER",
            )
        };
        self.pid = pid.trim().parse().map_err(missing)?;
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        until("the server answers", || {
            if log().contains("ddress already in use") {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            // The reply may come from another server that took the port first.
            Ok(self
                .info_number("server", "process_id")
                .is_ok_and(|pid| pid == u64::from(self.pid)))
        })
        .map_err(|error| io::Error::new(error.kind(), format!("{error}: {}", log())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Blocks until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !holds()? {
        if Instant::now() > until {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not within {TIMEOUT:?}: {what}"),
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns a free port whose cluster bus port is also free.
pub(super) fn free_port() -> io::Result<u16> {
    let random = RandomState::new();
    for attempt in 0..1000_u64 {
        // Below the ephemeral port range.
        let port = 10_000 + (random.hash_one(attempt) % 12_000) as u16;
        if [port, port + BUS]
            .iter()
            .all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        {
            return Ok(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "no free port on 127.0.0.1",
    ))
}
