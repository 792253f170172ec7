//! Lists logs in the order in which a scan finds them.

use std::io::{self, BufWriter, Write};

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::store::{LiveKey, LogKey, StoredKey};
use limiter_core::{Decision, Error, ErrorKind, Limiter, Name, Policy};
use wildmatch::WildMatch;

use super::args::ListArgs;
use super::line::Line;
use crate::escape::escape;
use crate::json::write_line;
use crate::message::{OUTPUT, message};
use crate::options::Output;
use crate::store::{Logs, failed};

/// The maximum number of logs read concurrently.
const MAX_CONCURRENT_READS: usize = 64;

pub(super) async fn list(
    store: Logs,
    policy: Option<Policy>,
    args: &ListArgs,
) -> anyhow::Result<()> {
    let pattern = args.pattern.as_deref().map(WildMatch::new);
    let mut out = BufWriter::new(io::stdout().lock());
    // The numbers of keys on which no limit could be tried.
    let mut digests = 0;
    let mut damaged = 0;
    if args.shown.output == Output::Summary {
        Line::write_head(&mut out, policy.is_some()).context(OUTPUT)?;
    }
    let print = async |keys: Vec<LiveKey>| {
        let fitting = keys.into_iter().filter(|live| {
            pattern.as_ref().is_none_or(|pattern| match &live.key {
                StoredKey::Known(key) => pattern.matches(&escape(key)),
                StoredKey::Digest(_) => false,
            })
        });
        let store = &store;
        let policy = policy.as_ref();
        let lines = stream::iter(fitting)
            .map(|live| line(store, policy, live, args))
            .buffered(MAX_CONCURRENT_READS);
        let lines: Vec<Option<Line>> = lines.try_collect().await?;
        for line in lines.into_iter().flatten() {
            match args.shown.output {
                _ if args.over && line.key.is_none() => digests += 1,
                _ if args.over && line.error.is_some() => damaged += 1,
                Output::Summary => line.write_row(&mut out, policy.is_some()).context(OUTPUT)?,
                Output::Jsonl => write_line(&mut out, &line).context(OUTPUT)?,
            }
        }
        out.flush().context(OUTPUT)
    };
    store.scan(args.name, print).await?;
    for (count, what) in [
        (digests, ", because the store holds only a digest"),
        (
            damaged,
            " without a log (list without --over shows them; reset removes them)",
        ),
    ] {
        if count > 0 {
            let keys = if count == 1 { "key" } else { "keys" };
            message(format_args!(
                "limits could not be applied to {count} {keys}{what}"
            ));
        }
    }
    Ok(())
}

/// Returns a key's line. `None` if the key no longer exists, or is filtered out.
async fn line(
    store: &Logs,
    policy: Option<&Policy>,
    live: LiveKey,
    args: &ListArgs,
) -> anyhow::Result<Option<Line>> {
    let (name, shown_name) = (Name::new(&live.name), escape(live.name.as_bytes()));
    let key = match live.key {
        StoredKey::Known(key) => key,
        StoredKey::Digest(digest) => {
            return Ok(Some(Line {
                name: shown_name,
                sha256: Some(digest),
                ..Line::default()
            }));
        }
    };
    let read = async {
        let decision = match policy {
            Some(policy) => Some(
                Limiter::new(name, policy.clone(), store.shared())
                    .peek(&*key)
                    .await?,
            ),
            None => None,
        };
        if args.over && decision.as_ref().is_none_or(Decision::is_allowed) {
            return Ok(None);
        }
        Ok::<_, Error>(
            store
                .inspect(LogKey { name, key: &key })
                .await?
                .map(|log| (log, decision)),
        )
    };
    let shown = escape(&key);
    match read.await {
        Ok(read) => Ok(read
            .map(|(log, decision)| Line::known(shown_name, shown, Some(log), decision.as_ref()))),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(Line {
            name: shown_name,
            key: Some(shown),
            error: Some("not_a_log"),
            ..Line::default()
        })),
        Err(error) => Err(failed(error)),
    }
}
