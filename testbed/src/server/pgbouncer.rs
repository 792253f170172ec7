//! A `PgBouncer` before a Postgres server.

use std::io;
use std::net::TcpStream;

use tempfile::TempDir;

use super::keeper::Keeper;
use super::postgres::Postgres;
use super::process::{free_port, until};

/// The script of a [`Keeper`]. `PgBouncer` refuses to run as root.
const KEEPER: &str = r#"bin=${LIMITER_PGBOUNCER:-$(PATH=$PATH:/usr/sbin command -v pgbouncer)}
[ -x "$bin" ] || exit
if [ "$(id -u)" = 0 ]; then chmod 777 .; as="setpriv --reuid=65534 --regid=65534 --clear-groups --"; fi
$as "$bin" pgbouncer.ini </dev/null >log 2>&1 & pid=$!; echo $pid
keep=$(cat); kill -9 $pid 2>/dev/null; wait"#;

/// A `PgBouncer` for one test, on 127.0.0.1, in Debian's version. Dropping it stops the program.
#[derive(Debug)]
pub struct PgBouncer {
    url: String,
    _keeper: Keeper,
    _dir: TempDir,
}

impl PgBouncer {
    /// Starts a pool by `session` or by `transaction`.
    ///
    /// # Errors
    /// If there is no binary, or if it does not listen within 20 s.
    pub fn start(server: &Postgres, mode: &str) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (port, server_port) = (free_port()?, server.address().port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user=limiter\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\n"
        );
        std::fs::write(dir.path().join("pgbouncer.ini"), settings)?;
        let (keeper, pid) = Keeper::start(dir.path(), KEEPER, [""; 0])?;
        if pid.is_empty() {
            let text = "these tests need PgBouncer: install the package pgbouncer, or name the program in LIMITER_PGBOUNCER";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        until("PgBouncer listens", || {
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        let server_address = server.address().to_string();
        let url = server
            .url()
            .replace(&server_address, &format!("127.0.0.1:{port}"));
        Ok(Self {
            url,
            _keeper: keeper,
            _dir: dir,
        })
    }

    /// Returns the URL of the database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }
}
