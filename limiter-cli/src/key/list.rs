//! Lists logs as a scan finds them.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_cli::escape::escape;
use limiter_cli::redis::failed;
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, ErrorKind, Limiter, Name, Policy};
use limiter_redis::{LiveKey, RedisStore, StoredKey};
use wildmatch::WildMatch;

use super::args::{Form, List};
use super::line::Line;

/// The number of keys of the database that Redis looks at for a page.
const PAGE: usize = 1_000;
/// The number of logs that are read at the same time.
const TASKS: usize = 64;

/// The number of keys that no limit could be tried on.
#[derive(Default)]
struct Untried {
    digests: u64,
    damaged: u64,
}

pub(super) async fn list(store: RedisStore, policy: Option<Policy>, args: &List) -> anyhow::Result<()> {
    let pattern = args.pattern.as_deref().map(WildMatch::new);
    let store = Arc::new(store);
    let mut out = BufWriter::new(io::stdout().lock());
    let (limits, mut untried) = (policy.is_some(), Untried::default());
    if args.output == Form::Table {
        Line::write_head(&mut out, limits)?;
    }
    let mut cursor = None;
    loop {
        let page = match args.name {
            Some(name) => store.scan_name(name.as_str(), cursor, PAGE).await,
            None => store.scan(cursor, PAGE).await,
        };
        let page = page.map_err(failed)?;
        let fitting = page.keys.into_iter().filter(|live| {
            pattern.as_ref().is_none_or(|pattern| match &live.key {
                StoredKey::Known(key) => pattern.matches(&args.target.shown(key)),
                _ => false,
            })
        });
        let (store, policy) = (&store, policy.as_ref());
        let lines = stream::iter(fitting).map(|live| line(store, policy, live, args)).buffered(TASKS);
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
            "limiter: limits could not be tried on {keys} without a log (see list without --over; reset removes them)"
        );
    }
    Ok(())
}

/// A key that the scan found.
enum Found {
    /// It is gone by now, or filtered out.
    Gone,
    Log(Line),
    Digest(Line),
    Damaged(Line),
}

async fn line(store: &Arc<RedisStore>, policy: Option<&Policy>, live: LiveKey, args: &List) -> anyhow::Result<Found> {
    let shown_name = escape(live.name.as_bytes());
    let key = match live.key {
        StoredKey::Known(key) => key,
        StoredKey::Digest(digest) => return Ok(Found::Digest(Line::digest(shown_name, digest))),
        _ => return Ok(Found::Gone),
    };
    let name = Name::new(&live.name);
    let read = async {
        let decision = match policy {
            Some(policy) => Some(Limiter::new(name, policy.clone(), Arc::clone(store)).peek(&*key).await?),
            None => None,
        };
        if args.over && decision.as_ref().is_none_or(Decision::allowed) {
            return Ok(None);
        }
        Ok::<_, Error>(store.inspect(LogKey { name, key: &key }).await?.map(|log| (log, decision)))
    };
    let shown = args.target.shown(&key);
    match read.await {
        Ok(Some((log, decision))) => Ok(Found::Log(Line::known(shown_name, shown, Some(log), decision.as_ref()))),
        Ok(None) => Ok(Found::Gone),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Found::Damaged(Line::damaged(shown_name, shown))),
        Err(error) => Err(failed(error)),
    }
}

fn keys(count: u64) -> String {
    format!("{count} key{}", if count == 1 { "" } else { "s" })
}
