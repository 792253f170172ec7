//! The Redis group. With `--test`, checks that every scenario works. Otherwise runs the quick form of those whose names
//! contain a given text.

use anyhow::{Result, ensure};
use limiter_benches::record::{REDIS, Record};
use limiter_benches::render;
use limiter_benches::turns::Effort;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let test = !args.iter().any(|arg| arg == "--bench") || args.iter().any(|arg| arg == "--test");
    let only = args.iter().find(|arg| !arg.starts_with('-')).map(String::as_str);
    let record = Record::measure(&REDIS, if test { &Effort::TEST } else { &Effort::QUICK }, only)?;
    for (scenario, figures) in &record.results {
        for (who, figures) in figures {
            let positive = figures.values().all(|figure| *figure > 0.0);
            ensure!(positive && !figures.is_empty(), "{scenario}, {who}: {figures:?}");
        }
    }
    if only.is_none() {
        let admitted = record.get("textbook/collisions", "limiter", "admitted");
        ensure!(record.results.len() == 49 && admitted == Some(100.0), "{:?}", record.results.keys());
    }
    if !test {
        for (name, text) in render::sections(&REDIS, &[record]) {
            println!("## {name}\n\n{text}");
        }
    }
    Ok(())
}
