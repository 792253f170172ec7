//! The program `limiter`.

#![forbid(unsafe_code)]

mod args;
mod input;
#[cfg(feature = "redis")]
mod key;
mod progress;
mod run;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use limiter_cli::trace::TraceError;

fn main() -> ExitCode {
    let result = match args::Cli::parse().command {
        args::Command::Replay(replay) => run::replay(&replay),
        args::Command::Generate(generate) => run::generate(&generate),
        #[cfg(feature = "redis")]
        args::Command::Key(key) => key::key(&key),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limiter: {error:#}");
            ExitCode::from(if is_usage(&error) { 2 } else { 1 })
        }
    }
}

/// Whether whoever read the output has stopped, as `head` does.
fn reader_left(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_usage(error: &anyhow::Error) -> bool {
    #[cfg(feature = "redis")]
    if error.is::<limiter_cli::redis::Invalid>() {
        return true;
    }
    error.is::<run::Usage>() || matches!(error.downcast_ref(), Some(TraceError::Malformed(_)))
}
