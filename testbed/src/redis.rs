//! The faults of a Redis server.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::proxy::{Network, Proxy};
use crate::server::{Server, until};

/// Keeps every confirmed write across `SIGKILL`, and starts replicas immediately.
const ARGS: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// A fault of a Redis server, or of the network before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisFault {
    /// The network fails.
    Network(Network),
    /// Killed with `SIGKILL`, and restarted with its append-only file.
    Kill,
    /// Killed with `SIGKILL`, and restarted without data.
    KillAndForget,
    /// Stopped with `SIGSTOP`, and continued.
    Pause,
    /// Killed with `SIGKILL`. Its replica takes over, at the same address.
    Failover,
    /// Busy with a script that does not end.
    Busy,
    /// Out of memory, with the default policy `noeviction`.
    OutOfMemory,
    /// A replica of a dead master.
    ReadOnly,
    /// A master that needs a replica to accept writes, and has none.
    NoReplicas,
}

/// A Redis server behind a [`Proxy`].
#[derive(Debug)]
pub struct RedisScene {
    /// The server, past the proxy. A failover changes it.
    pub server: Server,
    /// The proxy.
    pub proxy: Proxy,
}

impl RedisScene {
    /// Starts a server with an append-only file.
    pub fn start() -> io::Result<Self> {
        let server = Server::start_with(&ARGS)?;
        let proxy = Proxy::start(address(&server))?;
        Ok(Self { server, proxy })
    }

    /// Returns the URL of the proxy.
    pub fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }
}

fn address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}

impl RedisFault {
    /// Returns `true` if the fault may lose confirmed writes.
    pub fn loses_data(self) -> bool {
        matches!(self, Self::KillAndForget | Self::Failover)
    }

    /// Calls `during` while the server has the fault. The server serves again when this returns, or within a second.
    pub fn inject(self, scene: &mut RedisScene, during: &mut dyn FnMut()) -> io::Result<()> {
        let RedisScene { server, proxy } = scene;
        match self {
            Self::Network(network) => {
                proxy.set(network);
                during();
                proxy.set(Network::Healthy);
            }
            Self::Kill | Self::KillAndForget => {
                if self == Self::KillAndForget {
                    server.command::<()>(&["FLUSHALL"])?;
                }
                server.kill();
                proxy.set(Network::Refuse);
                during();
                server.restart()?;
                until_loaded(server)?;
                proxy.set(Network::Healthy);
            }
            Self::Pause => {
                server.pause()?;
                during();
                server.resume()?;
            }
            Self::Failover => {
                let replica = server.start_replica()?;
                server.kill();
                proxy.set(Network::Refuse);
                during();
                replica.command::<()>(&["REPLICAOF", "NO", "ONE"])?;
                proxy.redirect(address(&replica));
                proxy.set(Network::Healthy);
                *server = replica;
            }
            Self::Busy => {
                server.command::<()>(&["CONFIG", "SET", "lua-time-limit", "20"])?;
                TcpStream::connect(address(server))?
                    .write_all(b"EVAL \"while true do end\" 0\r\n")?;
                let is_busy = |error: io::Error| error.to_string().contains("BUSY");
                until("the script runs", || {
                    Ok(server.command::<()>(&["PING"]).is_err_and(is_busy))
                })?;
                during();
                server.command::<()>(&["SCRIPT", "KILL"])?;
                // Otherwise a script that a busy machine interrupts makes the server busy later.
                let default = ["CONFIG", "SET", "lua-time-limit", "5000"];
                until("the script has ended", || {
                    Ok(server.command::<()>(&default).is_ok())
                })?;
            }
            Self::OutOfMemory | Self::NoReplicas => {
                let option = if self == Self::NoReplicas {
                    "min-replicas-to-write"
                } else {
                    "maxmemory"
                };
                server.command::<()>(&["CONFIG", "SET", option, "1"])?;
                during();
                server.command::<()>(&["CONFIG", "SET", option, "0"])?;
            }
            Self::ReadOnly => {
                server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"])?;
                during();
                server.command::<()>(&["REPLICAOF", "NO", "ONE"])?;
            }
        }
        Ok(())
    }
}

fn until_loaded(server: &Server) -> io::Result<()> {
    until("the server has loaded its data", || {
        Ok(server.info_number("persistence", "loading")? == 0)
    })
}
