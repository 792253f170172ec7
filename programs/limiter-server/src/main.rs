//! The program limiter-server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use limiter_server::migration::Pod;
use limiter_server::options::{Command, LogFormat, Options};
use limiter_server::{check, migration};
use mimalloc::MiMalloc;
use tracing_subscriber::EnvFilter;

/// A request allocates some sixty times.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        // A full disk must not turn into a panic.
        let _ = writeln!(io::stderr(), "limiter-server: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let variables: BTreeMap<_, _> = std::env::vars_os().filter_map(text).collect();
    let options = Options::read(Pod::read(&variables));
    match (options.command, options.serve) {
        (Some(Command::Check { path, refinements }), _) => {
            let (mut out, mut errors) = (io::stdout().lock(), io::stderr().lock());
            let checked = check::check(&path, refinements, &mut out, &mut errors);
            // `head` reads only the beginning of a table.
            let has_left = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            let is_clean = match checked {
                Err(error) if has_left(&error) => true,
                checked => checked?,
            };
            Ok(if is_clean {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        (None, Some(serve)) => {
            let level = std::env::var_os("RUST_LOG").filter(|level| !level.is_empty());
            let level = level.map(|level| level.to_string_lossy().into_owned());
            let level = level
                .or_else(|| serve.level.clone())
                .unwrap_or("info".to_owned());
            // The warnings of h2 are about frames, which clients could repeat without end.
            let filter = EnvFilter::builder()
                .parse(format!("h2=error,{level}"))
                .context("the variable RUST_LOG")?;
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(io::stderr)
                // A line that cannot be written is lost; reporting that would panic.
                .log_internal_errors(false);
            match serve.log_format {
                LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
                LogFormat::Json => log.json().flatten_event(true).init(),
            }
            migration::check(&variables).map_err(anyhow::Error::msg)?;
            for line in migration::replaced(variables.into_keys(), serve.xds.is_some()) {
                tracing::warn!("{line}");
            }
            let runtime = tokio::runtime::Runtime::new()?;
            let ended = runtime.block_on(limiter_server::run::run(&serve));
            // A reading of a folder over the network may hang.
            runtime.shutdown_background();
            ended?;
            Ok(ExitCode::SUCCESS)
        }
        (None, None) => Ok(ExitCode::from(2)),
    }
}
