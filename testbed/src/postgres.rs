//! The faults of a Postgres server.

use std::io;

use crate::proxy::{Network, Proxy};
use crate::server::Postgres;

/// A fault of a Postgres server, or of the network before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostgresFault {
    /// The network fails.
    Network(Network),
    /// A session has locked all rows.
    LockedRows,
    /// A session has locked the table, as `VACUUM FULL` and `ALTER TABLE` do.
    LockedTable,
    /// The synchronous standby is gone, so no transaction is confirmed.
    NoStandby,
    /// The server only reads, as a standby does.
    ReadOnly,
    /// All sessions are terminated at the beginning.
    Terminated,
    /// Killed with `SIGKILL`, and restarted with its data.
    Kill,
}

/// A server behind a proxy.
#[derive(Debug)]
pub struct PostgresScene {
    /// The server.
    pub server: Postgres,
    proxy: Proxy,
}

impl PostgresScene {
    /// Starts a server and a proxy.
    pub fn start() -> io::Result<Self> {
        let server = Postgres::start()?;
        let proxy = Proxy::start(server.address())?;
        Ok(Self { server, proxy })
    }

    /// Returns the URL of the proxy.
    pub fn url(&self) -> String {
        let addresses = [self.server.address(), self.proxy.address()].map(|it| it.to_string());
        self.server.url().replace(&addresses[0], &addresses[1])
    }
}

impl PostgresFault {
    /// Returns the statements of one session that begin and end the fault. `None` if it takes more.
    pub fn statements(self) -> Option<[&'static str; 2]> {
        Some(match self {
            Self::Network(_) | Self::Kill => return None,
            Self::LockedRows => [
                "BEGIN; LOCK TABLE limiter_logs IN EXCLUSIVE MODE;",
                "ROLLBACK;",
            ],
            Self::LockedTable => ["BEGIN; LOCK TABLE limiter_logs;", "ROLLBACK;"],
            Self::NoStandby => [
                "ALTER SYSTEM SET synchronous_standby_names = 'gone'; SELECT pg_reload_conf();",
                "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();",
            ],
            Self::ReadOnly => [
                "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf();",
                "ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf();",
            ],
            Self::Terminated => [
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'limiter';",
                "SELECT;",
            ],
        })
    }

    /// Calls `during` while the server has the fault.
    pub fn inject(self, scene: &mut PostgresScene, during: &mut dyn FnMut()) -> io::Result<()> {
        let PostgresScene { server, proxy } = scene;
        if let Some([begin, end]) = self.statements() {
            let mut session = server.session()?;
            session.run(begin)?;
            during();
            return session.run(end);
        }
        match self {
            Self::Network(network) => proxy.set(network),
            _ => server.kill(),
        }
        during();
        proxy.set(Network::Healthy);
        if self == Self::Kill {
            server.restart()?;
        }
        Ok(())
    }
}
