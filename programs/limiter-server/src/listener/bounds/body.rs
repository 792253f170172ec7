//! Bodies that count against the memory of their listener.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tonic::Status;
use tower::BoxError;

use super::{BODY, InProgress};
use crate::http::TOO_MANY;

/// A body that passes each chunk through a function.
pub(crate) struct Watched<B = Incoming> {
    body: B,
    each: Box<dyn FnMut(Bytes) -> Result<Bytes, BoxError> + Send>,
}

impl<B> Watched<B> {
    /// Returns the body of a request. It fails if there is too little memory.
    pub(in crate::listener) fn request(body: B, request: Arc<InProgress>) -> Self {
        let each = move |part: Bytes| match request.take(part.len().saturating_mul(BODY)) {
            true => Ok(part),
            false => Err(Status::resource_exhausted(TOO_MANY).into()),
        };
        let each = Box::new(each);
        Self { body, each }
    }

    /// Returns the body of a response, which occupies memory until its client has read it.
    pub(in crate::listener) fn response(body: B, request: Arc<InProgress>) -> Self {
        // Until there is a part. A stream may be silent afterwards.
        let mut unread = Some(request.unread());
        let each = Box::new(move |data| {
            Ok(Bytes::from_owner(Part {
                data,
                _unread: unread.take().unwrap_or_else(|| request.unread()),
                _request: Arc::clone(&request),
            }))
        });
        Self { body, each }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(
            frame.map(|frame| match frame.map_err(Into::into)?.into_data() {
                Ok(part) => (self.each)(part).map(Frame::data),
                Err(trailers) => Ok(trailers),
            }),
        )
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
    _unread: Arc<()>,
    _request: Arc<InProgress>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
