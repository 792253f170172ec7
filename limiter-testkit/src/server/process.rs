//! A single server process.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::wire::{self, Reply};

/// The timeout for starting a server, and for each command.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The offset of a cluster node's bus port.
const BUS: u16 = 10_000;

/// Kills the server when its standard input closes, which happens when the test process ends for any reason.
const KEEPER: &str = r#"program=$1; shift; "$program" "$@" </dev/null >/dev/null 2>&1 & pid=$!; echo $pid
cat >/dev/null; kill -9 $pid 2>/dev/null; wait"#;

/// A Redis server for one test. Dropping it stops the server.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    keeper: Option<Child>,
    pid: u32,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// If there is no server binary, or if the server does not answer within 20 s.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments, for example `["--maxmemory", "2mb"]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> io::Result<Self> {
        let program = program()?;
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let mut last = None;
        for _ in 0..10 {
            let dir = tempfile::Builder::new().prefix("limiter-redis-").tempdir()?;
            let mut server =
                Self { program: program.clone(), port: free_port()?, args: args.clone(), dir, keeper: None, pid: 0 };
            match server.launch() {
                Ok(()) => return Ok(server),
                // Another process may have taken the port in the meantime.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    /// Starts a replica of this server and waits until it is in sync.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_replica(&self) -> io::Result<Self> {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &self.port.to_string()])?;
        let until = Instant::now() + TIMEOUT;
        while !replica.info("replication")?.contains("master_link_status:up") {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the replica did not catch up"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(replica)
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the path of the server's Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Returns the id of the server's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends one command over a new connection. An error reply is a [`Reply`], too.
    ///
    /// # Errors
    /// If the server does not answer within 20 s.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        wire::command(self.port, &args, TIMEOUT)
    }

    /// Sends one command as [`command`](Self::command) does, whose reply must be `OK`.
    ///
    /// # Errors
    /// As [`command`](Self::command), and with the reply if it is another.
    pub fn expect_ok<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<()> {
        match self.command(args)?.text() {
            ok if ok == "OK" => Ok(()),
            other => Err(io::Error::other(format!("expected OK, found {other}"))),
        }
    }

    /// Returns a section of `INFO`.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn info(&self, section: &str) -> io::Result<String> {
        Ok(self.command(&["INFO", section])?.text())
    }

    /// Returns a number from `INFO`, for example `info_number("replication", "master_repl_offset")`; 0 if it is
    /// missing.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn info_number(&self, section: &str, name: &str) -> io::Result<u64> {
        let info = self.info(section)?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.and_then(|value| value.trim().parse().ok()).unwrap_or(0))
    }

    /// Kills the server with `SIGKILL`.
    pub fn kill(&mut self) {
        let Some(mut keeper) = self.keeper.take() else { return };
        drop(keeper.stdin.take());
        let _ = keeper.wait();
    }

    /// Restarts the server on the same port with its persisted data. By default there is none.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.launch()
    }

    /// Restarts the server as [`restart`](Self::restart) does, with other additional arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart_with(&mut self, args: &[&str]) -> io::Result<()> {
        self.args = args.iter().map(ToString::to_string).collect();
        self.restart()
    }

    /// Stops the server with `SIGSTOP`, so that it hangs with its connections open.
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("-STOP")
    }

    /// Lets the server go on after a [`pause`](Self::pause).
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn resume(&self) -> io::Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        let status = Command::new("kill").args([signal, &self.pid.to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("kill {signal}: {status}"))) }
    }

    fn launch(&mut self) -> io::Result<()> {
        let dir = self.dir.path();
        let log = dir.join("log");
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&self.program)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--protected-mode", "no"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(dir)
            .arg("--logfile")
            .arg(&log)
            .arg("--unixsocket")
            .arg(self.dir.path().join("redis.sock"))
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut pid = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut pid)?;
        }
        self.keeper = Some(keeper);
        self.pid = pid.trim().parse().map_err(|_| io::Error::other("the server's process is not known"))?;
        self.wait_until_ready(&log)
    }

    fn wait_until_ready(&self, log: &Path) -> io::Result<()> {
        let until = Instant::now() + TIMEOUT;
        loop {
            // The answer may come from another server that took the port first.
            match self.info_number("server", "process_id") {
                Ok(pid) if pid == u64::from(self.pid) => return Ok(()),
                _ => {}
            }
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if text.contains("ddress already in use") {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            if Instant::now() > until {
                let text = format!("{} did not start within {TIMEOUT:?}: {text}", self.program.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of the server binary.
fn program() -> io::Result<PathBuf> {
    if let Some(program) = std::env::var_os("LIMITER_REDIS_SERVER") {
        return Ok(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = ["redis-server", "valkey-server"]
        .iter()
        .find_map(|name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()));
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "these tests need a Redis or Valkey server: install it (Debian, Ubuntu: apt-get install redis-server; \
             Fedora: dnf install valkey; macOS: brew install redis) or name its program in LIMITER_REDIS_SERVER",
        )
    })
}

/// Returns a free port whose cluster bus port is also free.
fn free_port() -> io::Result<u16> {
    let random = RandomState::new();
    for attempt in 0..1000_u64 {
        // Below the ephemeral port range.
        let port = 10_000 + (random.hash_one(attempt) % 12_000) as u16;
        if [port, port + BUS].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port on 127.0.0.1"))
}
