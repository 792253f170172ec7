//! The time that the store may take for one request.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use limiter_core::{BoxFuture, Error, ErrorKind, Timer};

/// How long the store may take for one request.
#[derive(Clone, Copy)]
pub(crate) struct TimeLimit<'a> {
    pub(crate) timeout: Duration,
    pub(crate) timer: Option<&'a dyn Timer>,
}

/// A time limit that has started.
pub(crate) struct Running<'a> {
    timeout: Duration,
    timer: Option<&'a dyn Timer>,
    sleep: Option<BoxFuture<'a, ()>>,
    passed: bool,
}

impl<'a> TimeLimit<'a> {
    pub(crate) const fn start(self) -> Running<'a> {
        Running { timeout: self.timeout, timer: self.timer, sleep: None, passed: false }
    }
}

impl Running<'_> {
    /// Runs a future until the limit has passed.
    pub(crate) async fn run<T>(&mut self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            if !self.passed {
                if self.sleep.is_none() {
                    let Some(timer) = self.timer else { return Poll::Ready(Err(no_timer())) };
                    self.sleep = Some(timer.sleep(self.timeout));
                }
                self.passed = self.sleep.as_mut().is_none_or(|sleep| sleep.as_mut().poll(context).is_ready());
            }
            if self.passed { Poll::Ready(Err(timed_out(self.timeout))) } else { Poll::Pending }
        })
        .await
    }
}

fn timed_out(timeout: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("the store did not answer within {timeout:?}"))
}

fn no_timer() -> Error {
    let text = "a store that does not answer at once needs a timer for its timeout: enable the feature `tokio` and run in a \
                tokio runtime, or set a timer on the layer";
    Error::new(ErrorKind::Configuration, text)
}
