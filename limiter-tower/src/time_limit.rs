//! The time that the store may take for one request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use limiter_core::{BoxFuture, Error, ErrorKind, Timer};

/// Completes with an error when the time has passed, at each poll. The time starts with the first poll.
pub(crate) struct Late<'a> {
    timeout: Duration,
    timer: Option<&'a dyn Timer>,
    sleep: Option<BoxFuture<'a, ()>>,
    passed: bool,
}

impl<'a> Late<'a> {
    pub(crate) const fn new(timeout: Duration, timer: Option<&'a dyn Timer>) -> Self {
        Self { timeout, timer, sleep: None, passed: false }
    }

    /// Runs a future until the time has passed.
    pub(crate) async fn limit<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Error> {
        match select(std::pin::pin!(future), self).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right((error, _)) => Err(error),
        }
    }
}

impl Future for Late<'_> {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Error> {
        let Self { timeout, timer, sleep, passed } = &mut *self;
        let Some(timer) = *timer else {
            let text = "a store that does not answer at once needs a timer for its timeout: enable the feature `tokio` and run \
                        in a tokio runtime, or set a timer on the layer";
            return Poll::Ready(Error::new(ErrorKind::Configuration, text));
        };
        *passed = *passed || sleep.get_or_insert_with(|| timer.sleep(*timeout)).as_mut().poll(context).is_ready();
        if *passed {
            return Poll::Ready(Error::new(ErrorKind::Timeout, format!("the store did not answer within {timeout:?}")));
        }
        Poll::Pending
    }
}
