//! One connection: its duration, and the size of its bodies.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready as when_ready};
use std::time::Duration;

use axum_server::accept::Accept;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::Status;
use tower::{BoxError, Service};

/// How long a connection lasts without a request. Pings are none.
const IDLE: Duration = Duration::from_secs(600);
/// How long a client may read nothing while something is sent to it.
const WRITE: Duration = Duration::from_secs(30);
/// How long a connection beyond the limit lasts: long enough for a health check.
const BRIEF: Duration = Duration::from_secs(1);
/// The largest number of connections beyond the limit. Further ones are closed.
const BRIEF_SEATS: usize = 1_000;

/// The connections of a listener.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    lasting: Arc<Semaphore>,
    brief: Arc<Semaphore>,
}

impl Seats {
    pub(super) fn new(max_connections: usize) -> Self {
        let semaphore = |seats: usize| Arc::new(Semaphore::new(seats.min(Semaphore::MAX_PERMITS)));
        Self { lasting: semaphore(max_connections), brief: semaphore(BRIEF_SEATS) }
    }

    /// Returns a new connection's seat; `None` if there are too many.
    pub(super) fn take(&self) -> Option<Seat> {
        let (taken, is_brief) = match Arc::clone(&self.lasting).try_acquire_owned() {
            Ok(taken) => (taken, false),
            Err(_) => (Arc::clone(&self.brief).try_acquire_owned().ok()?, true),
        };
        Some(Seat { _taken: taken, is_brief, began: Instant::now(), last_request: AtomicU64::new(0) })
    }
}

/// A connection's place among its listener's connections.
#[derive(Debug)]
pub(super) struct Seat {
    _taken: OwnedSemaphorePermit,
    is_brief: bool,
    began: Instant,
    /// Milliseconds after the beginning.
    last_request: AtomicU64,
}

impl Seat {
    pub(super) fn note_request(&self) {
        self.last_request.store(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    fn end(&self) -> Instant {
        let last = Duration::from_millis(self.last_request.load(Relaxed));
        self.began + if self.is_brief { BRIEF } else { last + IDLE }
    }
}

/// A service for one connection.
#[derive(Clone, Debug)]
pub(super) struct Seated<S> {
    pub(super) seat: Option<Arc<Seat>>,
    pub(super) service: S,
}

impl<R, S: Service<R>> Service<R> for Seated<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        if let Some(seat) = &self.seat {
            seat.note_request();
        }
        self.service.call(request)
    }
}

/// Bounds the time of connections, and closes those without a seat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds;

impl<S> Accept<TcpStream, Seated<S>> for Bounds {
    type Stream = Bounded;
    type Service = Seated<S>;
    type Future = Ready<io::Result<(Bounded, Seated<S>)>>;

    fn accept(&self, stream: TcpStream, service: Seated<S>) -> Self::Future {
        let bounded = |seat: &Arc<Seat>| {
            stream.set_nodelay(true)?;
            let (seat, end) = (Arc::clone(seat), Box::pin(sleep_until(seat.end())));
            Ok(Bounded { stream, seat, end, write: None })
        };
        let taken = service.seat.as_ref().ok_or_else(|| io::Error::other("too many connections"));
        ready(taken.and_then(bounded).map(|stream| (stream, service)))
    }
}

/// A connection that ends without requests, and if its client reads nothing.
#[derive(Debug)]
pub(super) struct Bounded {
    stream: TcpStream,
    seat: Arc<Seat>,
    end: Pin<Box<Sleep>>,
    /// When the current response is late.
    write: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    /// Returns an error if a write waits too long.
    fn written<T>(&mut self, result: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write = None;
            return result;
        }
        when_ready!(self.write.get_or_insert_with(|| Box::pin(sleep(WRITE))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if read.is_ready() && !self.seat.is_brief {
            return read;
        }
        while self.end.as_mut().poll(context).is_ready() {
            let end = self.seat.end();
            if end <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.end.as_mut().reset(end);
        }
        read
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.written(result, context)
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

/// A body whose bytes count against a budget until it ends or is dropped. Beyond the budget it fails.
#[derive(Debug)]
pub(crate) struct Budgeted {
    pub(super) body: Incoming,
    pub(super) budget: Arc<Semaphore>,
    pub(super) taken: Option<OwnedSemaphorePermit>,
}

impl Body for Budgeted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = when_ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        match Arc::clone(&self.budget).try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)) {
            Ok(more) => match &mut self.taken {
                Some(taken) => taken.merge(more),
                None => self.taken = Some(more),
            },
            Err(_) => return Poll::Ready(Some(Err(Status::resource_exhausted("too many unfinished bodies").into()))),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
