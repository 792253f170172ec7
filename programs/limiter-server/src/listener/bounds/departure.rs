//! Clients that leave while their request waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// The socket of a connection, whose client may leave during a wait. Over HTTP/2, such a client resets its request.
#[derive(Clone, Debug)]
pub(crate) struct Departure(Arc<OwnedFd>);

impl Departure {
    /// Returns a second handle on the socket, which hyper does not read during a request. `None` without file descriptors.
    pub(in crate::listener) fn of(socket: &impl AsFd) -> Option<Self> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        Some(Self(Arc::new(socket)))
    }

    /// Waits until the client has closed its half of the connection.
    pub(crate) async fn wait(&self) {
        // Only the readiness is used, so the kind of socket does not matter.
        let socket = self.0.try_clone().map(std::net::TcpStream::from);
        if let Ok(socket) = socket.and_then(TcpStream::from_std) {
            while let Ok(ready) = socket.ready(Interest::READABLE).await {
                if ready.is_read_closed() {
                    return;
                }
                // The next request: waits for more.
                let _ = socket.try_io(Interest::READABLE, || {
                    Err::<(), _>(io::ErrorKind::WouldBlock.into())
                });
            }
        }
        std::future::pending::<()>().await;
    }
}
