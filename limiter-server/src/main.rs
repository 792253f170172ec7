//! The program limiter-server.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use limiter_server::check;
use limiter_server::options::{Command, Options};
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
    let options = Options::parse();
    match (options.command, options.serve) {
        (Some(Command::Check { path }), _) => {
            let clean = check::check(&path, &mut io::stdout().lock(), &mut io::stderr().lock())?;
            Ok(if clean {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        (None, Some(serve)) => {
            let filter =
                EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(io::stderr);
            // A line that cannot be written is lost; reporting that would panic.
            log.with_ansi(io::stderr().is_terminal())
                .log_internal_errors(false)
                .init();
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
