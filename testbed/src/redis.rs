//! The faults of a Redis server.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};

use crate::proxy::{Network, Proxy};
use crate::scene::Scene;
use limiter_testkit::server::{Server, until};

/// Keeps every confirmed write across `SIGKILL`, and starts replicas immediately.
const ARGS: [&str; 6] = ["--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0"];
/// Sleeps at every 16th command of the append-only file. The server replies after each 1,024 of them.
const LOAD_DELAY: [&str; 2] = ["--key-load-delay", "-16"];
/// A script whose commands take some 4 s to load with the delay.
const FILL: &str = "for _ = 1, 1000000 do redis.call('INCR', 'i') end return redis.status_reply('OK')";

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
    /// Restarted, and loading its data.
    Loading,
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
    server: Server,
    replica: Option<Server>,
    proxy: Proxy,
}

impl RedisScene {
    /// Starts a server with an append-only file.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start() -> io::Result<Self> {
        let server = Server::start_with(&ARGS)?;
        let proxy = Proxy::start(address(&server))?;
        Ok(Self { server, replica: None, proxy })
    }
}

fn address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}

impl Scene for RedisScene {
    type Fault = RedisFault;

    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    fn direct_url(&self) -> String {
        self.server.url()
    }

    fn begin(&mut self, fault: RedisFault) -> io::Result<()> {
        let server = &mut self.server;
        match fault {
            RedisFault::Network(network) => self.proxy.set(network),
            RedisFault::Kill | RedisFault::KillAndForget | RedisFault::Failover => {
                if fault == RedisFault::KillAndForget {
                    server.expect_ok(&["FLUSHALL"])?;
                }
                if fault == RedisFault::Failover {
                    self.replica = Some(server.start_replica()?);
                }
                server.kill();
                self.proxy.set(Network::Refuse);
            }
            RedisFault::Pause => server.pause()?,
            RedisFault::Loading => {
                server.expect_ok(&["EVAL", FILL, "0"])?;
                server.restart_with(&[&ARGS[..], &LOAD_DELAY].concat())?;
            }
            RedisFault::Busy => {
                server.expect_ok(&["CONFIG", "SET", "lua-time-limit", "20"])?;
                TcpStream::connect(address(server))?.write_all(b"EVAL \"while true do end\" 0\r\n")?;
                until("the script runs", || Ok(server.command(&["PING"])?.text().starts_with("BUSY")))?;
            }
            RedisFault::OutOfMemory => server.expect_ok(&["CONFIG", "SET", "maxmemory", "1"])?,
            RedisFault::ReadOnly => server.expect_ok(&["REPLICAOF", "127.0.0.1", "1"])?,
            RedisFault::NoReplicas => server.expect_ok(&["CONFIG", "SET", "min-replicas-to-write", "1"])?,
        }
        Ok(())
    }

    fn end(&mut self, fault: RedisFault) -> io::Result<()> {
        let server = &mut self.server;
        match fault {
            RedisFault::Network(_) => self.proxy.set(Network::Healthy),
            RedisFault::Kill | RedisFault::KillAndForget => {
                server.restart()?;
                until_loaded(server)?;
                self.proxy.set(Network::Healthy);
            }
            RedisFault::Failover => {
                let replica = self.replica.take().ok_or_else(|| io::Error::other("there is no replica"))?;
                replica.expect_ok(&["REPLICAOF", "NO", "ONE"])?;
                self.proxy.redirect(address(&replica));
                self.proxy.set(Network::Healthy);
                self.server = replica;
            }
            RedisFault::Pause => server.resume()?,
            RedisFault::Loading => {
                if server.info_number("persistence", "loading")? == 0 {
                    return Err(io::Error::other("the server has loaded its data too early"));
                }
                // Redis 6.2 refuses the command while it loads.
                if server.command(&["CONFIG", "SET", "key-load-delay", "0"])?.text() != "OK" {
                    server.restart_with(&ARGS)?;
                }
                until_loaded(server)?;
            }
            RedisFault::Busy => {
                server.expect_ok(&["SCRIPT", "KILL"])?;
                // Otherwise a script that a busy machine interrupts makes the server busy later.
                let default = ["CONFIG", "SET", "lua-time-limit", "5000"];
                until("the script has ended", || Ok(server.command(&default)?.text() == "OK"))?;
            }
            RedisFault::OutOfMemory => server.expect_ok(&["CONFIG", "SET", "maxmemory", "0"])?,
            RedisFault::ReadOnly => server.expect_ok(&["REPLICAOF", "NO", "ONE"])?,
            RedisFault::NoReplicas => server.expect_ok(&["CONFIG", "SET", "min-replicas-to-write", "0"])?,
        }
        Ok(())
    }

    fn loses_data(fault: RedisFault) -> bool {
        matches!(fault, RedisFault::KillAndForget | RedisFault::Failover)
    }
}

fn until_loaded(server: &Server) -> io::Result<()> {
    until("the server has loaded its data", || Ok(server.info_number("persistence", "loading")? == 0))
}
