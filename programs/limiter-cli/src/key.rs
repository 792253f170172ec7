//! The command `key`: shows, resets and lists a running service's logs in Redis or Postgres.

mod args;
mod line;
mod list;

use std::io::{self, Write};

use anyhow::Context;
use limiter_core::store::LogKey;
use limiter_core::{Limiter, WindowStore as _};

use crate::escape::escape;
use crate::json::write_line;
use crate::message::OUTPUT;
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

async fn reset(args: &ResetArgs) -> anyhow::Result<()> {
    let keys = args
        .keys
        .iter()
        .map(args::key)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let store = open(&args.target).await?.shared();
    let mut out = io::stdout().lock();
    for key in keys {
        let had = store
            .reset(LogKey::new(args.name, &key))
            .await
            .map_err(failed)?;
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
