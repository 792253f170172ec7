//! The network between a process and the server.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use fastrand::Rng;
use limiter_core::{self as core, ErrorKind as Kind};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::world::{CALL, Fate, Shared, World};

/// A process's connection. When it breaks, the next message opens another one.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) world: Shared,
    pub(crate) process: usize,
}

const LONG: Duration = Duration::from_secs(3_600);

fn broken() -> RedisError {
    Error::from(ErrorKind::BrokenPipe).into()
}

impl Link {
    /// Sends a request of a call, which the server executes when it arrives. Returns its reply, unless the connection breaks.
    pub(crate) async fn send<T: Send + 'static>(
        &self,
        call: Option<usize>,
        execute: impl FnOnce(&mut World, &mut Rng) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let world = self.world.clone();
        let (journey, mut random) = world.lock().send(self.process, call);
        if Instant::now() < world.lock().dead {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (reply, received) = oneshot::channel();
        // A request that was sent arrives even if the caller gives up.
        tokio::spawn(async move {
            sleep_until(journey.arrival).await;
            let waits = world.lock().waits();
            if let Some(until) = waits {
                sleep_until(until).await;
            }
            let executed = {
                let world = &mut *world.lock();
                let is_lost = journey.fate == Fate::RequestLost || Instant::now() < world.dead;
                (!is_lost).then(|| (execute(world, &mut random), world.lives))
            };
            sleep(journey.back).await;
            let lives = world.lock().lives;
            let executed =
                executed.filter(|(_, life)| journey.fate == Fate::Arrives && *life == lives);
            let _ = reply.send(executed);
        });
        if journey.is_silent {
            std::future::pending::<()>().await;
        }
        if journey.fate == Fate::RequestLate {
            sleep(journey.back).await;
            return Err(ErrorKind::BrokenPipe.into());
        }
        match received.await {
            Ok(Some((reply, _))) => Ok(reply),
            _ => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends a request about logs to a server that is no Redis, which may refuse it.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        call: Option<usize>,
        logs: Vec<usize>,
        execute: impl FnOnce(&mut World, &mut Rng) -> Result<T, Kind> + Send + 'static,
    ) -> Result<T, core::Error> {
        let execute = move |world: &mut World, random: &mut Rng| match world.refusal(&logs) {
            Some(text) if text.starts_with("NOPERM") => Err(Kind::Configuration),
            Some(_) => Err(Kind::Corrupt),
            None => execute(world, random),
        };
        let response = {
            let setting = &self.world.lock().setting;
            // Without a timeout of its own, a server hangs until its callers are gone.
            if setting.timeout < LONG {
                LONG
            } else {
                setting.response
            }
        };
        let (kind, text) = match timeout(response, self.send(call, execute)).await {
            Ok(Ok(Ok(reply))) => return Ok(reply),
            Ok(Ok(Err(kind))) => (kind, "it refuses this"),
            Ok(Err(_)) => (Kind::Unavailable, "the connection broke"),
            Err(_) => (Kind::Timeout, "no reply"),
        };
        Err(core::Error::new(kind, text.to_owned()))
    }

    async fn command(&self, command: Cmd) -> Result<Value, RedisError> {
        let process = self.process;
        let call = CALL.try_with(|call| call.number).ok().flatten();
        let execute =
            move |world: &mut World, random: &mut _| world.execute(process, call, &command, random);
        let executed = self.send(call, execute).await?;
        if let Some(call) = call
            && executed.result.is_ok()
        {
            let mut world = self.world.lock();
            // Settlements do not show the clock.
            let is_decision = executed.replied.as_ref().is_some_and(|all| !all.is_empty());
            world.processes[process].has_heard |= is_decision;
            world.calls[call].replied = executed.replied;
        } else if let Some(call) = call {
            self.world.lock().calls[call].is_refused = executed.is_refused;
        }
        executed.result
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.command(command.clone()))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Err(broken()) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
