//! The program `limiter`.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
#[cfg(feature = "stores")]
use limiter_cli::key::{self, Key};
use limiter_cli::message::message;
use limiter_cli::replay::{self, Replay};
use limiter_cli::suggest::{self, Suggest};
use limiter_cli::trace::Malformed;
use limiter_cli::usage_error::UsageError;

/// An exact sliding-window rate limiter for the command line.
#[derive(Debug, Parser)]
#[command(name = "limiter", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(Replay),
    Suggest(Suggest),
    #[cfg(feature = "stores")]
    Key(Key),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Replay(replay) => replay::run(&replay),
        Command::Suggest(suggest) => suggest::run(&suggest),
        #[cfg(feature = "stores")]
        Command::Key(key) => key::run(&key),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            message(format_args!("{error:#}"));
            ExitCode::from(if is_usage(&error) { 2 } else { 1 })
        }
    }
}

/// Returns `true` if the reader of the output has closed it, as `head` does.
fn reader_left(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.is::<Malformed>()
}
