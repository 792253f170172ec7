//! The command `key`: shows, resets and lists a running service's logs in Redis or Postgres.

mod args;
mod line;
mod list;

use std::env;
use std::io::{self, Write};

use anyhow::Context;
use limiter_core::store::{LogInfo, LogKey};
use limiter_core::{Limiter, WindowStore as _};

use crate::escape::escape;
use crate::json::write_line;
use crate::message::{OUTPUT, message};
use crate::options::Output;
use crate::store::{Logs, failed, runtime};
use args::{KeyCommand, ResetArgs, ShowArgs, Target};
use line::{Line, write_page};

pub use args::Key;

/// Runs the command.
///
/// # Errors
/// [`UsageError`](crate::usage_error::UsageError) for invalid arguments. If the store fails, or writing the output does.
pub fn run(args: &Key) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        match &args.command {
            KeyCommand::Show(args) => show(args).await,
            KeyCommand::Reset(args) => reset(args).await,
            KeyCommand::List(args) => {
                let policy = args.shown.policy()?;
                list::list(open(&args.target).await?, policy, args).await
            }
        }
    })
}

async fn open(target: &Target) -> anyhow::Result<Logs> {
    Logs::open(&target.store, &target.prefix).await
}

async fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let key = args::key(&args.key)?;
    let policy = args.shown.policy()?;
    let store = open(&args.target).await?;
    let log = store
        .inspect(LogKey::new(args.name, &key))
        .await
        .map_err(failed)?;
    let decision = match policy {
        Some(policy) => Some(
            Limiter::new(args.name, policy, store.shared())
                .peek(&key)
                .await
                .map_err(failed)?,
        ),
        None => None,
    };
    let name = escape(args.name.as_str().as_bytes());
    let key = escape(&key);
    let mut out = io::stdout().lock();
    match args.shown.output {
        Output::Summary => write_page(&mut out, (&name, &key), log, decision.as_ref()),
        Output::Jsonl => write_line(&mut out, &Line::known(name, key, log, decision.as_ref())),
    }
    .context(OUTPUT)
}

/// Notes who has removed which log, as limiter-server's log does.
fn note(log: LogKey<'_>, before: Option<LogInfo>) {
    let mut users = ["SUDO_USER", "USER"].into_iter().filter_map(env::var_os);
    let user = users.next().unwrap_or_default();
    let removed = before.map_or_else(String::new, |before| {
        format!(" entries={} cost={}", before.entries, before.cost)
    });
    let (name, key) = (log.name.as_str(), String::from_utf8_lossy(log.key));
    message(format_args!(
        "reset name={name:?} key={key:?} user={user:?}{removed}"
    ));
}

async fn reset(args: &ResetArgs) -> anyhow::Result<()> {
    let keys = args
        .keys
        .iter()
        .map(args::key)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let logs = open(&args.target).await?;
    let store = logs.shared();
    let mut out = io::stdout().lock();
    for key in keys {
        let log = LogKey::new(args.name, &key);
        // A log that cannot be read can be removed.
        let before = logs.inspect(log).await.ok().flatten();
        let had = store.reset(log).await.map_err(failed)?;
        if had {
            note(log, before);
        }
        writeln!(
            out,
            "{}  {}",
            if had { "reset " } else { "no log" },
            escape(&key)
        )
        .context(OUTPUT)?;
    }
    Ok(())
}
