//! One command, within its time and its retries.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::failure::{Failure, Repeat};

/// How long a server that does not execute commands for now is left alone before the retry.
const PAUSE: Duration = Duration::from_millis(20);

/// How long and how often to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) response_timeout: Duration,
    pub(crate) retries: u32,
}

/// What a command is told about the attempts before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// The time since the first attempt that may have been executed.
    pub(crate) since_first: Option<Duration>,
    /// Whether the script must come along.
    pub(crate) bring: bool,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Whether an attempt before may have been executed.
    pub(crate) repeated: bool,
}

impl Patience {
    /// Sends what `command` makes until it is answered, or the patience is at its end.
    pub(crate) async fn run<C>(&self, connection: &C, command: impl Fn(Attempt) -> Cmd) -> Result<Answer, Failure>
    where
        C: ConnectionLike + Clone,
    {
        let mut connection = connection.clone();
        let mut first: Option<Instant> = None;
        let mut left = self.retries;
        loop {
            let sent = Instant::now();
            let since_first = first.map(|first| first.elapsed());
            let answer = timeout(self.response_timeout, once(&mut connection, &command, since_first)).await;
            let failure = match answer {
                Ok(Ok(value)) => return Ok(Answer { value, repeated: first.is_some() }),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Late,
            };
            let repeat = failure.repeat();
            if left == 0 || repeat == Repeat::Never {
                return Err(failure);
            }
            left -= 1;
            match repeat {
                Repeat::Ambiguous => first = first.or(Some(sent)),
                _ => sleep(PAUSE.min(self.response_timeout)).await,
            }
        }
    }
}

async fn once<C: ConnectionLike>(
    connection: &mut C,
    command: &impl Fn(Attempt) -> Cmd,
    since_first: Option<Duration>,
) -> Result<Value, Failure> {
    let answer = send(connection, command(Attempt { since_first, bring: false })).await;
    match answer {
        Err(failure) if failure.is_no_script() => send(connection, command(Attempt { since_first, bring: true })).await,
        answer => answer,
    }
}

async fn send<C: ConnectionLike>(connection: &mut C, cmd: Cmd) -> Result<Value, Failure> {
    cmd.query_async(connection).await.map_err(Failure::Redis)
}
