//! Sends one command, with a timeout for each attempt and retries.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use limiter_core::Timestamp;
use redis::{Cmd, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::Connection;
use crate::failure::{Failure, Repeat};
use crate::reply::late;

/// How long to wait before a retry if the server executes no commands at the moment.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The end of a longer call may overflow an `Instant`.
const LONGEST_CALL: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long an attempt may take, and how many retries follow it.
#[derive(Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) response_timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) budget: RetryBudget,
}

/// The retries that a store may still send: a token bucket that replies fill and retries empty, as in gRPC's retry throttling
/// (gRFC A6). Without it, the retries after a short stop keep a busy server from catching up.
#[derive(Debug)]
pub(crate) struct RetryBudget(AtomicU32);

impl RetryBudget {
    /// The tokens of a retry. A reply returns one, so at most a tenth of the replied operations are retried in the long run.
    const RETRY: u32 = 10;
    /// Enough for 100 retries without a reply.
    const FULL: u32 = 1_000;

    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(Self::FULL))
    }

    fn take(&self) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
                tokens.checked_sub(Self::RETRY)
            })
            .is_ok()
    }

    fn refill(&self) {
        let add = |tokens| (tokens < Self::FULL).then_some(tokens + 1);
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// The parameters of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The time since the first attempt that the server may have executed.
    pub(crate) since_first: Option<Duration>,
    /// When it begins.
    pub(crate) sent: Instant,
    /// When the caller gives up.
    pub(crate) gives_up: Instant,
    /// The server's clock in a reply that refused the attempt as too late.
    pub(crate) clock: Option<Timestamp>,
    /// Whether to send the script's text, because the server does not know the script.
    pub(crate) load: bool,
}

/// What Redis replied.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// Whether the server may have executed an earlier attempt.
    pub(crate) repeated: bool,
    /// When the successful attempt began.
    pub(crate) sent: Instant,
}

impl RetryPolicy {
    /// Returns the latest end of a call that begins now and whose caller waits for `timeout`.
    fn end(&self, timeout: Option<Duration>) -> Instant {
        let attempt = self.response_timeout + RETRY_PAUSE;
        let attempts = attempt
            .saturating_mul(self.retries.saturating_add(1))
            .min(LONGEST_CALL);
        Instant::now() + timeout.map_or(attempts, |timeout| timeout.min(attempts))
    }

    /// Sends the result of `command` until a reply arrives, no retry is left, or the call's time is up. A command that is not
    /// `repeatable` is retried only if the server did not execute it.
    pub(crate) async fn run(
        &self,
        connection: &Connection,
        call_timeout: Option<Duration>,
        repeatable: bool,
        mut command: impl FnMut(Attempt) -> Cmd,
    ) -> Result<Reply, Failure> {
        let end = self.end(call_timeout);
        let mut first = None::<Instant>;
        let mut left = self.retries;
        loop {
            let sent = Instant::now();
            let since_first = first.map(|first| first.elapsed());
            let response_timeout = self
                .response_timeout
                .min(end.saturating_duration_since(sent));
            let attempt = Attempt {
                since_first,
                sent,
                gives_up: sent + response_timeout,
                clock: None,
                load: false,
            };
            let reply = timeout(response_timeout, once(connection, &mut command, attempt)).await;
            let failure = match reply {
                Ok(Ok(value)) => {
                    self.budget.refill();
                    return Ok(Reply {
                        value,
                        repeated: first.is_some(),
                        sent,
                    });
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Timeout,
            };
            let repeat = failure.repeat();
            let may_repeat = repeat == Repeat::Safe || repeat == Repeat::Ambiguous && repeatable;
            if left == 0 || !may_repeat || end <= Instant::now() || !self.budget.take() {
                return Err(failure);
            }
            left -= 1;
            match repeat {
                Repeat::Ambiguous => first = first.or(Some(sent)),
                _ => sleep(RETRY_PAUSE.min(self.response_timeout)).await,
            }
        }
    }
}

async fn once(
    connection: &Connection,
    command: &mut impl FnMut(Attempt) -> Cmd,
    attempt: Attempt,
) -> Result<Value, Failure> {
    let mut send = async |attempt| {
        connection
            .send(&command(attempt))
            .await
            .map_err(Failure::Redis)
    };
    let mut reply = send(attempt).await;
    if reply.as_ref().is_err_and(Failure::is_no_script) {
        reply = send(Attempt {
            load: true,
            ..attempt
        })
        .await;
    }
    if let Some(clock) = reply.as_ref().ok().and_then(late) {
        // The caller still waits, so the server's clock was set forward. The deadline is by the new time.
        reply = send(Attempt {
            clock: Some(clock),
            ..attempt
        })
        .await;
    }
    match reply {
        Ok(value) if late(&value).is_some() => Err(Failure::Timeout),
        reply => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_retries_are_left_without_a_reply_and_ten_replies_add_one() {
        let budget = RetryBudget::new();
        let left = || std::iter::from_fn(|| budget.take().then_some(())).count();
        for (replies, retries) in [(0, 100), (0, 0), (9, 0), (1, 1), (1_000, 100), (5_000, 100)] {
            (0..replies).for_each(|_| budget.refill());
            assert_eq!(left(), retries, "after {replies} replies");
        }
    }
}
