//! The command `suggest`: the smallest limits that deny nobody in a trace, or only a share of its clients.

use std::collections::HashMap;
use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use foldhash::fast::FixedState;
use limiter_core::{Limit, MAX_COST, Window};

use crate::message::OUTPUT;
use crate::options::policy;
use crate::pass::{Input, RowResult, TraceArgs, pass};
use crate::text;
use crate::trace::Action;
use crate::usage_error::UsageError;

/// The number of deciding clients in each line.
const CLIENTS: usize = 3;
/// The maximum width of a key.
const MAX_KEY_CHARS: usize = 40;

/// Suggests a limit for each window: the smallest that denies nobody in a trace, or only a share of its clients.
///
/// `replay` with a suggested limit denies as few; with a maximum smaller by one it denies at least one client more. The trace is as for
/// `replay`. A client is a key with an acquire or a peek.
#[derive(Args, Debug)]
pub struct Suggest {
    /// The windows (units us, ms, s, m, h, d), each for a limit of its own. With commas, as in 1m,1h, or as several options
    #[arg(
        long = "window",
        value_name = "WINDOW",
        required = true,
        value_delimiter = ','
    )]
    windows: Vec<Window>,
    /// The share of clients that may be denied, as in 1%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = share)]
    deny: f64,
    #[command(flatten)]
    trace: TraceArgs,
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    let share = percent.filter(|percent| (0.0..=100.0).contains(percent));
    share
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected a share from 0% to 100%".to_owned())
}

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for invalid arguments. If reading the trace or writing the output fails.
pub fn run(args: &Suggest) -> anyhow::Result<()> {
    // A meter for each window: limits that nothing reaches, so nothing is denied or dropped.
    let meter = |window: &Window| Limit::with_window(MAX_COST, *window);
    let meters = args
        .windows
        .iter()
        .map(meter)
        .collect::<Result<Vec<_>, _>>();
    let meters = policy(&meters.map_err(|error| UsageError(error.to_string()))?)?;
    let mut input = Input::open(args.trace.file.as_deref(), false)?;
    // The maximum that each client needs in each window.
    let mut clients: HashMap<Box<[u8]>, Vec<u64>, FixedState> = HashMap::default();
    let passed = pass(
        &args.trace,
        &meters,
        &mut input,
        "reading",
        |row, result| {
            let RowResult::Decided(decision) = result else {
                return Ok(());
            };
            let cost = match row.action {
                Action::Acquire => 0,
                // It has appended nothing.
                Action::Peek => row.cost,
                Action::Record | Action::Reset => return Ok(()),
            };
            let needs = match clients.get_mut(row.key) {
                Some(needs) => needs,
                None => clients
                    .entry(row.key.into())
                    .or_insert_with(|| vec![0; args.windows.len()]),
            };
            for (need, limit) in needs.iter_mut().zip(decision.limits().iter()) {
                *need = (*need).max(limit.used().saturating_add(cost));
            }
            Ok(())
        },
    )?;
    print(&mut io::stdout().lock(), args, &clients).context(OUTPUT)?;
    passed.check(&input.name)
}

fn print(
    out: &mut impl Write,
    args: &Suggest,
    clients: &HashMap<Box<[u8]>, Vec<u64>, FixedState>,
) -> io::Result<()> {
    // At least one stays, whose need is the limit.
    let may_deny = (args.deny * clients.len() as f64) as usize;
    let may_deny = may_deny.min(clients.len().saturating_sub(1));
    writeln!(out, "clients  {:>12}", clients.len())?;
    for (i, window) in args.windows.iter().enumerate() {
        let mut needs: Vec<(u64, &[u8])> = clients
            .iter()
            .map(|(key, needs)| (needs[i], &**key))
            .collect();
        needs.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let Some((max, _)) = needs.get(may_deny) else {
            continue;
        };
        let denied = needs.iter().filter(|(need, _)| need > max).count();
        writeln!(out, "\nlimit    {max}/{window}, denies {denied} clients")?;
        for (need, key) in needs[denied..].iter().take(CLIENTS) {
            let key = text::key(key, MAX_KEY_CHARS);
            writeln!(out, "{:>12}  {key}", text::grouped(*need))?;
        }
    }
    Ok(())
}
