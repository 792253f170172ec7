//! A TCP proxy whose network fails on command.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The behaviour of the network between a store and its server. The client is the store's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Forwards everything immediately.
    Healthy,
    /// Delays each byte by this long, in each direction. Throughput stays as it is.
    Latency(Duration),
    /// Holds back the client's data until this ends. Replies pass.
    HoldRequests,
    /// Holds back the server's data until this ends. Requests pass.
    HoldReplies,
    /// Resets each connection after this many bytes towards the server, counted from now on.
    CutRequest(usize),
    /// Resets each connection after this many bytes towards the client, counted from now on.
    CutReply(usize),
}

/// A TCP proxy to one server. Dropping it closes its connections.
///
/// It runs on a thread with its own runtime, so a test may block while others use it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    runtime: Option<Runtime>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    network: Network,
    /// The number of changes so far. A cut counts bytes from the last one.
    changes: u64,
    server: SocketAddr,
}

impl Proxy {
    /// Starts a healthy proxy to `server` on a free port of 127.0.0.1.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel(State {
            network: Network::Healthy,
            changes: 0,
            server,
        });
        let listener = {
            let _runtime = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(accept(listener, seen));
        Ok(Self {
            address,
            state,
            runtime: Some(runtime),
        })
    }

    /// Returns the address that stores connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the network, for open and for new connections.
    pub fn set(&self, network: Network) {
        self.state
            .send_modify(|state| (state.network, state.changes) = (network, state.changes + 1));
    }

    /// Sends new connections to another server. Open ones stay.
    pub fn redirect(&self, server: SocketAddr) {
        self.state.send_modify(|state| state.server = server);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Waiting is not allowed within another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone, Copy)]
enum Towards {
    Server,
    Client,
}

impl Network {
    fn holds(self, towards: Towards) -> bool {
        match towards {
            Towards::Server => self == Self::HoldRequests,
            Towards::Client => self == Self::HoldReplies,
        }
    }

    fn cuts_after(self, towards: Towards) -> Option<usize> {
        match (self, towards) {
            (Self::CutRequest(bytes), Towards::Server)
            | (Self::CutReply(bytes), Towards::Client) => Some(bytes),
            _ => None,
        }
    }
}

/// Accepts connections until the proxy is dropped.
async fn accept(listener: TcpListener, state: watch::Receiver<State>) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, state.clone()));
        }
    }
}

async fn serve(mut client: TcpStream, state: watch::Receiver<State>) {
    let _ = client.set_nodelay(true);
    let address = state.borrow().server;
    let forwarded = async {
        let mut server = TcpStream::connect(address).await.ok()?;
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            end = forward(from_client, to_server, Towards::Server, state.clone()) => end,
            end = forward(from_server, to_client, Towards::Client, state) => end,
        }
    };
    if forwarded.await.is_none() {
        // Closing sends a reset instead of the end of the stream.
        let _ = client.set_zero_linger();
    }
}

/// Forwards one direction until it is closed. Returns `None` if the connection must be reset.
async fn forward(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    towards: Towards,
    mut state: watch::Receiver<State>,
) -> Option<()> {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    // Reading continues while earlier bytes are delayed.
    let read = async move {
        let mut buffer = [0; 16 * 1024];
        loop {
            let count = from.read(&mut buffer).await.ok()?;
            if count == 0
                || sender
                    .send((Instant::now(), buffer[..count].to_vec()))
                    .await
                    .is_err()
            {
                return Some(());
            }
        }
    };
    let write = async move {
        let mut since = 0;
        let mut forwarded = 0;
        while let Some((arrived, mut bytes)) = chunks.recv().await {
            let State {
                network, changes, ..
            } = *state
                .wait_for(|state| !state.network.holds(towards))
                .await
                .ok()?;
            if let Network::Latency(latency) = network {
                sleep_until(arrived + latency).await;
            }
            if since != changes {
                (since, forwarded) = (changes, 0);
            }
            forwarded += bytes.len();
            let excess = network
                .cuts_after(towards)
                .and_then(|cut| forwarded.checked_sub(cut));
            bytes.truncate(bytes.len().saturating_sub(excess.unwrap_or(0)));
            to.write_all(&bytes).await.ok()?;
            if excess.is_some() {
                return None;
            }
        }
        to.shutdown().await.ok()
    };
    tokio::try_join!(async { read.await.ok_or(()) }, async {
        write.await.ok_or(())
    })
    .ok()
    .map(drop)
}
