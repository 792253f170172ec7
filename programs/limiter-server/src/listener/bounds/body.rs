//! Bodies that count against the memory of their listener.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tonic::Status;
use tower::BoxError;

use super::{BODY, InProgress};
use crate::http::TOO_MANY;

/// The body of a request. It fails if there is too little memory.
#[derive(Debug)]
pub(crate) struct Budgeted {
    body: Incoming,
    request: Arc<InProgress>,
}

impl Budgeted {
    pub(in crate::listener) fn new(body: Incoming, request: Arc<InProgress>) -> Self {
        Self { body, request }
    }
}

impl Body for Budgeted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let len = data.map_or(0, Bytes::len).saturating_mul(BODY);
        Poll::Ready(match self.request.count(len) {
            true => frame.map(|frame| frame.map_err(Into::into)),
            false => Some(Err(Status::resource_exhausted(TOO_MANY).into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response, which occupies memory until its client has read it.
pub(in crate::listener) struct Sent<B> {
    body: B,
    request: Arc<InProgress>,
    /// Until there is data. A stream may be silent afterwards.
    unread: Option<Arc<()>>,
}

impl<B: Body> Sent<B> {
    pub(in crate::listener) fn new(
        response: Response<B>,
        request: Arc<InProgress>,
    ) -> Response<Self> {
        let unread = Some(request.unread());
        response.map(|body| Self {
            body,
            request,
            unread,
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self {
            body,
            request,
            unread,
        } = &mut *self;
        let part = |data| {
            let unread = unread.take().unwrap_or_else(|| request.unread());
            let request = Arc::clone(request);
            Bytes::from_owner(Part {
                data,
                _request: request,
                _unread: unread,
            })
        };
        Pin::new(body)
            .poll_frame(context)
            .map_ok(|frame| frame.map_data(part))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of a response, which is dropped when the system has taken it.
struct Part {
    data: Bytes,
    _request: Arc<InProgress>,
    _unread: Arc<()>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
