//! One pass over a trace: its rows run through a limiter in memory.

mod input;
mod rows;

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use limiter_core::{Limiter, Policy};
use limiter_memory::MemoryStore;

use crate::message::OUTPUT;
use crate::progress::bar;
use crate::trace::{Format, Row, Trace};

pub(crate) use self::input::Input;
pub(crate) use self::rows::{Passed, RowResult};

/// The name of the limiter.
const NAME: &str = "replay";

/// A trace, and how to read it.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The trace; - or nothing for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The format of the trace [default: detected from its content]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Count the IPv6 addresses of a network together, by this length of its prefix in bits; limiter-tower's default is 64. A key
    /// that is no address is malformed
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(crate) client_prefix: Option<u8>,
    /// Continues after a malformed row, and reports the number of such rows. Fails at the end if they are the majority
    #[arg(long)]
    pub(crate) skip_invalid: bool,
}

/// Runs the trace in memory, and calls `each` with every row in order.
pub(crate) fn pass(
    args: &TraceArgs,
    policy: &Policy,
    input: &mut Input,
    what: &'static str,
    each: impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
) -> anyhow::Result<Passed> {
    let name = input.name.clone();
    let bar = bar(what, input.length());
    let mut trace = Trace::new(bar.wrap_read(input), args.format).with_context(|| name.clone())?;
    let limiter = Limiter::new(NAME, policy.clone(), MemoryStore::new());
    let result = rows::replay(args, &mut trace, &limiter, each);
    bar.finish_and_clear();
    result.map_err(|error| {
        // An I/O error comes from the output, often a closed pipe, so do not blame the trace.
        let is_of_output = error.is::<io::Error>();
        error.context(if is_of_output {
            OUTPUT.to_owned()
        } else {
            name
        })
    })
}
