//! Lists keys as they are found.

use std::io::{self, BufWriter, Write};

use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_cli::redis::failed;
use limiter_core::{ErrorKind, Limiter, Op, Policy};
use limiter_redis::{LiveKey, RedisStore, StoredKey};
use wildmatch::WildMatch;

use super::args::{Form, List};
use super::line::Line;

/// How many keys of the database Redis looks at for a page.
const PAGE: usize = 1_000;
/// How many keys are looked at at a time.
const TASKS: usize = 64;

/// What no limit could be tried on.
#[derive(Default)]
struct Untried {
    digests: u64,
    damaged: u64,
}

pub(super) async fn list(store: RedisStore, policy: Option<Policy>, args: &List) -> anyhow::Result<()> {
    let pattern = args.pattern.as_deref().map(WildMatch::new);
    // The policy of operations that bring none: there are none.
    let limiter = Limiter::new(
        store,
        policy.clone().unwrap_or_else(|| limiter_core::Limit::meter(limiter_core::Window::MAX).into()),
    );
    let mut out = BufWriter::new(io::stdout().lock());
    let (limits, mut untried) = (policy.is_some(), Untried::default());
    if args.output == Form::Table {
        Line::write_head(&mut out, limits)?;
    }
    let mut cursor = None;
    loop {
        let page = limiter.store().scan(cursor, PAGE).await.map_err(failed)?;
        let fitting = page.keys.into_iter().filter(|live| {
            pattern.as_ref().is_none_or(|pattern| match &live.key {
                StoredKey::Known(key) => pattern.matches(&args.place.shown(key)),
                _ => false,
            })
        });
        let (limiter, policy) = (&limiter, policy.as_ref());
        let lines = stream::iter(fitting).map(|live| line(limiter, policy, live, args)).buffered(TASKS);
        let lines: Vec<Found> = lines.try_collect().await?;
        for found in lines {
            match found {
                Found::Gone => continue,
                Found::Digest(_) if args.over => untried.digests += 1,
                Found::Damaged(_) if args.over => untried.damaged += 1,
                Found::Log(line) | Found::Digest(line) | Found::Damaged(line) => match args.output {
                    Form::Table => line.write_row(&mut out, limits)?,
                    Form::Jsonl => line.write_json(&mut out)?,
                },
            }
        }
        out.flush()?;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if untried.digests > 0 {
        let keys = keys(untried.digests);
        eprintln!("limiter: limits could not be tried on {keys}, of which Redis holds a digest only");
    }
    if untried.damaged > 0 {
        let keys = keys(untried.damaged);
        eprintln!(
            "limiter: limits could not be tried on {keys} without a log (see list without --over; reset mends them)"
        );
    }
    Ok(())
}

/// A key that was found.
enum Found {
    /// It went meanwhile, or is not asked for.
    Gone,
    Log(Line),
    Digest(Line),
    Damaged(Line),
}

async fn line(
    limiter: &Limiter<RedisStore>,
    policy: Option<&Policy>,
    live: LiveKey,
    args: &List,
) -> anyhow::Result<Found> {
    let key = match live.key {
        StoredKey::Known(key) => key,
        StoredKey::Digest(digest) => return Ok(Found::Digest(Line::digest(digest))),
        _ => return Ok(Found::Gone),
    };
    let looked = async {
        let decision = match policy {
            Some(policy) => Some(limiter.run(Op::peek(&key, policy)).await?),
            None => None,
        };
        if args.over && decision.is_none_or(|decision| decision.allowed()) {
            return Ok(None);
        }
        let log = limiter.store().inspect(&key).await?;
        Ok(log.map(|log| Line::known(args.place.shown(&key), Some(log), decision.as_ref())))
    };
    match looked.await {
        Ok(Some(line)) => Ok(Found::Log(line)),
        Ok(None) => Ok(Found::Gone),
        Err(error) if limiter_core::Error::kind(&error) == ErrorKind::Corrupt => {
            Ok(Found::Damaged(Line::damaged(args.place.shown(&key))))
        }
        Err(error) => Err(failed(error)),
    }
}

fn keys(count: u64) -> String {
    format!("{count} key{}", if count == 1 { "" } else { "s" })
}
