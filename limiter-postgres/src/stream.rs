//! The streams to a server.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use futures_util::TryFutureExt;
use futures_util::future::MapOk;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_util::either::Either;

#[cfg(unix)]
type LocalStream = tokio::net::UnixStream;
#[cfg(not(unix))]
type LocalStream = TcpStream;

pub(crate) type Stream = UntilClosed<Either<TcpStream, LocalStream>>;

/// A stream that, when it is shut down, waits until the server has closed it. Or a maker of such streams.
///
/// `PgBouncer` 1.18 crashes if a cancellation's connection is closed while the cancellation is forwarded. And once a server has closed
/// a connection, its backend has ended.
pub(crate) struct UntilClosed<S>(pub(crate) S);

/// Connects to the address of a configuration.
pub(crate) async fn reach(config: &Config) -> io::Result<Stream> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let address = config.get_hostaddrs().first().map(ToString::to_string);
    let address = match (address, config.get_hosts().first()) {
        (Some(address), _) => address,
        (None, Some(Host::Tcp(name))) => name.clone(),
        #[cfg(unix)]
        (None, Some(Host::Unix(folder))) => {
            let path = folder.join(format!(".s.PGSQL.{port}"));
            let stream = LocalStream::connect(path).await?;
            return Ok(UntilClosed(Either::Right(stream)));
        }
        (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let stream = TcpStream::connect((address, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())?;
    if config.get_keepalives() {
        let mut keepalive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            keepalive = keepalive.with_interval(interval);
        }
        #[cfg(unix)]
        if let Some(retries) = config.get_keepalives_retries() {
            keepalive = keepalive.with_retries(retries);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    Ok(UntilClosed(Either::Left(stream)))
}

impl<S: AsyncRead + Unpin> AsyncRead for UntilClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for UntilClosed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut discarded = [0; 512];
            let mut buffer = ReadBuf::new(&mut discarded);
            let read = ready!(pin!(&mut self.0).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return pin!(&mut self.0).poll_shutdown(context);
            }
        }
    }
}

impl<S: TlsStream + Unpin> TlsStream for UntilClosed<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.0.channel_binding()
    }
}

impl<S, T: TlsConnect<S>> TlsConnect<S> for UntilClosed<T>
where
    T::Future: Future<Output = Result<T::Stream, T::Error>>,
{
    type Stream = UntilClosed<T::Stream>;
    type Error = T::Error;
    type Future = MapOk<T::Future, fn(T::Stream) -> Self::Stream>;

    fn connect(self, stream: S) -> Self::Future {
        self.0.connect(stream).map_ok(UntilClosed)
    }
}
