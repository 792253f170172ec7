//! A Postgres server.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::keeper::Keeper;
use super::process::{free_port, until};

/// The script of a [`Keeper`]. Makes a cluster unless there is one. Prints nothing if there is no server binary. Postgres refuses to run
/// as root.
const KEEPER: &str = r#"bin=${LIMITER_POSTGRES_BIN:-$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)}
[ -n "$bin" ] || bin=$(dirname "$(command -v initdb)")
[ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] || exit
if [ "$(id -u)" = 0 ]; then chmod 777 .; as="setpriv --reuid=65534 --regid=65534 --clear-groups --"; fi
[ -e data ] || $as "$bin/initdb" -D data -U limiter -E UTF8 --locale=C --auth=trust --no-sync >log 2>&1 || { echo failed; exit; }
# Files for the data folder, such as a key that only the server may read.
[ ! -e files ] || $as sh -c 'umask 077; cp files/* data'
$as "$bin/postgres" -D data -c fsync=off -c full_page_writes=off -c max_wal_size=100MB -c dynamic_shared_memory_type=mmap -c unix_socket_directories= "$@" </dev/null >>log 2>&1 & pid=$!; echo $pid
keep=$(cat); kill -STOP $pid; all="$pid $(pgrep -P $pid)"; kill -9 $all 2>/dev/null; wait
# A process that still ends would hold the shared memory that the next server needs.
for each in $all; do n=0; while [ $n -lt 200 ] && grep -qs 'State:.[^ZX]' /proc/$each/status; do sleep 0.01; n=$((n + 1)); done; done"#;

/// A Postgres server for one test, on 127.0.0.1. Dropping it stops the server.
///
/// It survives a kill with all that it confirmed, because the machine does not stop.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    dir: TempDir,
    args: Vec<String>,
    keeper: Option<Keeper>,
}

impl Postgres {
    /// Starts a server with an empty database.
    ///
    /// # Errors
    /// If there is no server binary, or if the server does not respond within 20 s.
    pub fn start() -> io::Result<Self> {
        Self::start_in(&folder(), &[], &[])
    }

    /// Starts a server that accepts only TLS and, if there is a `ca`, only clients with a certificate from it. All is PEM.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_tls(certificate: &str, key: &str, ca: Option<&str>) -> io::Result<Self> {
        let clients = ca.map_or("", |_| " clientcert=verify-ca");
        let hba = format!("hostssl all all all trust{clients}\n");
        let files = [
            ("server.crt", certificate),
            ("server.key", key),
            ("root.crt", ca.unwrap_or(certificate)),
            ("pg_hba.conf", &hba),
        ];
        Self::start_in(&folder(), &files, &["ssl=on", "ssl_ca_file=root.crt"])
    }

    /// Starts a server on the disk of the folder for temporary files, which waits for each write, as in production.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_durable() -> io::Result<Self> {
        let settings = ["fsync=on", "full_page_writes=on", "max_wal_size=1GB"];
        Self::start_in(&std::env::temp_dir(), &[], &settings)
    }

    fn start_in(folder: &Path, files: &[(&str, &str)], settings: &[&str]) -> io::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("limiter-postgres-")
            .tempdir_in(folder)?;
        if !files.is_empty() {
            let into = dir.path().join("files");
            std::fs::create_dir(&into)?;
            for (name, text) in files {
                std::fs::write(into.join(name), text)?;
            }
        }
        let args = settings.iter().flat_map(|setting| ["-c", setting]);
        let mut server = Self {
            port: free_port()?,
            dir,
            args: args.map(str::to_owned).collect(),
            keeper: None,
        };
        server.restart().map(|()| server)
    }

    /// Returns the URL of the database. Any password is accepted.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://limiter:secret@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Kills the server and its processes with `SIGKILL`.
    pub fn kill(&mut self) {
        self.keeper = None;
    }

    /// Kills the server and starts it with its data, on the same port.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        let port = self.port.to_string();
        let args = ["-h", "127.0.0.1", "-p", &port].into_iter();
        let args = args.chain(self.args.iter().map(String::as_str));
        let (keeper, pid) = Keeper::start(self.dir.path(), KEEPER, args)?;
        self.keeper = Some(keeper);
        if pid.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "these tests need a Postgres server: install it (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install \
                 postgresql-server; macOS: brew install postgresql) or name the folder of its programs in LIMITER_POSTGRES_BIN",
            ));
        }
        // The last line of `postmaster.pid` is the state of this server, and of no other.
        let state = self.dir.path().join("data/postmaster.pid");
        let is_ready = || {
            Ok(std::fs::read_to_string(&state).is_ok_and(|text| {
                text.lines().next() == Some(pid.trim()) && text.trim_end().ends_with("ready")
            }))
        };
        until("the server is ready", is_ready).map_err(|error| {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            io::Error::new(error.kind(), format!("{error}: {log}"))
        })
    }
}

/// Returns where to put the data: in memory if 500 MB are free there, because writes to a busy disk may block for many seconds.
fn folder() -> PathBuf {
    const MEMORY: &str = "/dev/shm";
    let free = || -> Option<u64> {
        let free = Command::new("df").args(["-Pm", MEMORY]).output().ok()?;
        let text = String::from_utf8(free.stdout).ok()?;
        text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
    };
    if free().is_some_and(|free| free >= 500) {
        MEMORY.into()
    } else {
        std::env::temp_dir()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
