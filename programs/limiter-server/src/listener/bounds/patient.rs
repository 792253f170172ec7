//! A connection over which a client may leave while it waits, and otherwise may close its half.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Seat;

/// A stream that hides the end of what the client sends while a request over HTTP/1 is in progress and does not
/// [wait](super::Waiting). hyper takes that end for the client's departure.
pub(in crate::listener) struct Patient<I> {
    pub(in crate::listener) stream: I,
    pub(in crate::listener) seat: Arc<Seat>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.remaining();
        ready!(Pin::new(&mut self.stream).poll_read(context, buf))?;
        let seat = &self.seat;
        if before == 0 || buf.remaining() < before || !seat.is_http1.load(Acquire) {
            return Poll::Ready(Ok(()));
        }
        seat.is_half_closed.store(true, Release);
        // Before the check, which follows each wake.
        seat.reader.register(context.waker());
        match seat.requests.load(Acquire) > 0 && !seat.waits.load(Acquire) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
