//! The Redis group. With `--test`, checks that everything works. Otherwise runs the quick form of measurements whose
//! names contain a given text.

use anyhow::{Result, ensure};
use limiter_benches::remote::{Effort, measure};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let test = args.iter().any(|arg| arg == "--test");
    let only = args.iter().find(|arg| !arg.starts_with('-')).map(String::as_str);
    let results = measure(if test { Effort::TEST } else { Effort::QUICK }, only)?;
    for row in &results.rows {
        let figures = [row.ours, row.gcra, row.noop, row.ratio.median];
        ensure!(figures.iter().all(|&figure| figure > 0.0), "{}: {figures:?}", row.name);
    }
    for load in &results.loads {
        for served in load.served.iter().filter_map(|(_, served)| served.as_ref().ok()) {
            let ordered = served.rate > 0.0 && 0.0 < served.half && served.half <= served.most;
            ensure!(ordered, "{}: {served:?}", load.name);
        }
    }
    for row in &results.grouped {
        let sides = row.sides.iter().all(|side| side.processor > 0.0 && side.rate > 0.0 && side.half <= side.most);
        ensure!(sides && row.ratio > 0.0, "{row:?}");
    }
    for row in &results.batches {
        ensure!(row.one_by_one > 0.0 && row.together > 0.0, "{row:?}");
    }
    for bytes in &results.bytes {
        ensure!(bytes.ours > bytes.entries && bytes.gcra > 0, "{bytes:?}");
    }
    if only.is_none() {
        let found = (results.rows.len(), results.loads.len(), results.bytes.len());
        ensure!(found == (13, 4, 4), "rows, loads and sizes: {found:?}");
        let found = (results.grouped.len(), results.batches.len());
        ensure!(found == (6, 3), "loads with group commit and batches: {found:?}");
        let exact = results.textbook.as_ref().is_some_and(|textbook| {
            textbook.lengths.len() == 6 && textbook.collisions.admitted[0].1 == textbook.collisions.max
        });
        ensure!(exact, "beside the textbook: {:?}", results.textbook);
        ensure!(results.sizing.len() == 6, "sizing: {:?}", results.sizing);
    }
    if test {
        println!("the Redis group works on {}", results.version);
    } else {
        println!("{}", results.markdown());
    }
    Ok(())
}
