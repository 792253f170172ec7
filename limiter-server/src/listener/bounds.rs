//! Bounds of a listener: its connections, their duration, and the size of their bodies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tower::BoxError;

/// How long a client may take to send the head of a request. Over HTTP/1, a connection without requests is closed after this time.
pub(super) const HEAD: Duration = Duration::from_secs(60);
/// How long a connection lasts without a request. Pings do not count.
const IDLE: Duration = Duration::from_secs(600);
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
        Self {
            lasting: semaphore(max_connections),
            brief: semaphore(BRIEF_SEATS),
        }
    }

    /// Returns a new connection's seat; `None` if there are too many.
    pub(super) fn take(&self) -> Option<Seat> {
        let (taken, is_brief) = match Arc::clone(&self.lasting).try_acquire_owned() {
            Ok(taken) => (taken, false),
            Err(_) => (Arc::clone(&self.brief).try_acquire_owned().ok()?, true),
        };
        Some(Seat {
            _taken: taken,
            is_brief,
            began: Instant::now(),
            last_request: AtomicU64::new(0),
        })
    }
}

/// A connection's place among its listener's connections.
#[derive(Debug)]
pub(super) struct Seat {
    _taken: OwnedSemaphorePermit,
    is_brief: bool,
    began: Instant,
    /// Milliseconds after the beginning; 0 before the first request.
    last_request: AtomicU64,
}

impl Seat {
    pub(super) fn note_request(&self) {
        let after = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_request.store(after.max(1), Relaxed);
    }

    /// Waits until the connection has lasted long enough.
    pub(super) async fn ended(&self) {
        loop {
            let end = self.began
                + match self.last_request.load(Relaxed) {
                    _ if self.is_brief => BRIEF,
                    0 => HEAD,
                    last => Duration::from_millis(last) + IDLE,
                };
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        match Arc::clone(&self.budget)
            .try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX))
        {
            Ok(more) => match &mut self.taken {
                Some(taken) => taken.merge(more),
                None => self.taken = Some(more),
            },
            Err(_) => {
                return Poll::Ready(Some(Err(Status::resource_exhausted(
                    "too many unfinished bodies",
                )
                .into())));
            }
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
