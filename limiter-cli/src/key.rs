//! The commands on live keys.

mod args;
mod line;
mod list;

use std::io::{self, Write};

use limiter_cli::escape::escape;
use limiter_cli::redis::{connect, failed, runtime};
use limiter_core::store::LogKey;
use limiter_core::{Limiter, WindowStore};

pub(crate) use args::Key;
use args::{Form, KeyCommand, Reset, Show, Target, policy};
use line::{Line, write_page};

pub(crate) fn key(args: &Key) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        match &args.command {
            KeyCommand::Show(args) => show(args).await,
            KeyCommand::Reset(args) => reset(args).await,
            KeyCommand::List(args) => {
                let policy = policy(&args.limits)?;
                list::list(open(&args.target).await?, policy, args).await
            }
        }
    })
}

async fn open(target: &Target) -> anyhow::Result<limiter_redis::RedisStore> {
    connect(&target.store, &target.prefix).await
}

async fn show(args: &Show) -> anyhow::Result<()> {
    let key = args.target.key(&args.key)?;
    let policy = policy(&args.limits)?;
    let store = open(&args.target).await?;
    let log = store.inspect(LogKey::new(args.name, &key)).await.map_err(failed)?;
    let decision = match policy {
        Some(policy) => Some(Limiter::new(args.name, policy, store).peek(&key).await.map_err(failed)?),
        None => None,
    };
    let (name, key) = (escape(args.name.as_str().as_bytes()), args.target.shown(&key));
    let mut out = io::stdout().lock();
    match args.output {
        Form::Table => write_page(&mut out, (&name, &key), log, decision.as_ref())?,
        Form::Jsonl => Line::known(name, key, log, decision.as_ref()).write_json(&mut out)?,
    }
    Ok(())
}

async fn reset(args: &Reset) -> anyhow::Result<()> {
    let keys = args.keys.iter().map(|key| args.target.key(key)).collect::<anyhow::Result<Vec<_>>>()?;
    let store = open(&args.target).await?;
    let mut out = io::stdout().lock();
    for key in keys {
        let had = store.reset(LogKey::new(args.name, &key)).await.map_err(failed)?;
        writeln!(out, "{}  {}", if had { "reset " } else { "no log" }, args.target.shown(&key))?;
    }
    Ok(())
}
