//! Lists logs in the order in which a scan finds them.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, ErrorKind, Limiter, Name, Policy};
use limiter_redis::{LiveKey, RedisStore, StoredKey};
use wildmatch::WildMatch;

use super::args::{List, OutputFormat};
use super::line::Line;
use crate::escape::escape;
use crate::json::write_line;
use crate::message::message;
use crate::redis::failed;

/// The number of database keys that Redis examines per page.
const PAGE_KEYS: usize = 1_000;
/// The maximum number of logs read concurrently.
const MAX_CONCURRENT_READS: usize = 64;

/// The numbers of keys on which no limit could be tried, by reason.
#[derive(Default)]
struct Unchecked {
    digests: u64,
    damaged: u64,
}

pub(super) async fn list(store: RedisStore, policy: Option<Policy>, args: &List) -> anyhow::Result<()> {
    let pattern = args.pattern.as_deref().map(WildMatch::new);
    let store = Arc::new(store);
    let mut out = BufWriter::new(io::stdout().lock());
    let (limits, mut unchecked) = (policy.is_some(), Unchecked::default());
    if args.output == OutputFormat::Table {
        Line::write_head(&mut out, limits)?;
    }
    let mut cursor = None;
    loop {
        let page = match args.name {
            Some(name) => store.scan_name(name.as_str(), cursor, PAGE_KEYS).await,
            None => store.scan(cursor, PAGE_KEYS).await,
        };
        let page = page.map_err(failed)?;
        let fitting = page.keys.into_iter().filter(|live| {
            pattern.as_ref().is_none_or(|pattern| match &live.key {
                StoredKey::Known(key) => pattern.matches(&args.target.shown(key)),
                _ => false,
            })
        });
        let (store, policy) = (&store, policy.as_ref());
        let lines = stream::iter(fitting).map(|live| line(store, policy, live, args)).buffered(MAX_CONCURRENT_READS);
        let lines: Vec<ScannedKey> = lines.try_collect().await?;
        for scanned in lines {
            match scanned {
                ScannedKey::Gone => continue,
                ScannedKey::Digest(_) if args.over => unchecked.digests += 1,
                ScannedKey::Damaged(_) if args.over => unchecked.damaged += 1,
                ScannedKey::Log(line) | ScannedKey::Digest(line) | ScannedKey::Damaged(line) => match args.output {
                    OutputFormat::Table => line.write_row(&mut out, limits)?,
                    OutputFormat::Jsonl => write_line(&mut out, &line)?,
                },
            }
        }
        out.flush()?;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if unchecked.digests > 0 {
        let keys = keys(unchecked.digests);
        message(format_args!("limits could not be tried on {keys}, of which Redis holds only a digest"));
    }
    if unchecked.damaged > 0 {
        let keys = keys(unchecked.damaged);
        message(format_args!(
            "limits could not be tried on {keys} without a log (list without --over shows them; reset removes them)"
        ));
    }
    Ok(())
}

/// A key that the scan found.
enum ScannedKey {
    /// The key is gone by now, or filtered out.
    Gone,
    Log(Line),
    Digest(Line),
    Damaged(Line),
}

async fn line(
    store: &Arc<RedisStore>,
    policy: Option<&Policy>,
    live: LiveKey,
    args: &List,
) -> anyhow::Result<ScannedKey> {
    let shown_name = escape(live.name.as_bytes());
    let key = match live.key {
        StoredKey::Known(key) => key,
        StoredKey::Digest(digest) => return Ok(ScannedKey::Digest(Line::digest(shown_name, digest))),
        _ => return Ok(ScannedKey::Gone),
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
        Ok(Some((log, decision))) => Ok(ScannedKey::Log(Line::known(shown_name, shown, Some(log), decision.as_ref()))),
        Ok(None) => Ok(ScannedKey::Gone),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(ScannedKey::Damaged(Line::damaged(shown_name, shown))),
        Err(error) => Err(failed(error)),
    }
}

fn keys(count: u64) -> String {
    format!("{count} key{}", if count == 1 { "" } else { "s" })
}
