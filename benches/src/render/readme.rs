//! The README's speed table and boundary picture.

use std::fmt::Write;

use super::table::number;
use crate::memory::libraries::PEERS;
use crate::record::Record;

/// The README's comparisons: a label, the group's position in [`speed`], the scenario, the measure and the peer.
const ROWS: [(&str, usize, &str, &str, &str); 4] = [
    ("one hot key, ns", 0, "hot/allowed", "ns", "governor"),
    ("1,024 keys, ns", 0, "keys_1024/allowed", "ns", "governor"),
    ("100,000 keys, 64 entries each, ns", 1, "100000 64 allowed 1", "ns", "governor"),
    ("Redis: 100,000 keys, 10 entries each, µs", 2, "server/keys/allowed/steady", "script", "GCRA"),
];

/// Returns the table: in each cell the peer's figure, and in brackets this library's divided by the peer's, bold above 1.
/// The groups are the records of decisions in memory, of the surface, and of Redis.
pub(super) fn speed(groups: [&[Record]; 3]) -> String {
    let families: Vec<&str> = groups[0].iter().map(Record::family).collect();
    let mut out = "| time per decision | peer |".to_owned();
    families.iter().for_each(|family| out += &format!(" limiter, {family} | peer, {family} |"));
    out += &format!("\n|---|---|{}\n", "---:|---:|".repeat(families.len()));
    for (label, group, scenario, measure, peer) in ROWS {
        let _ = write!(out, "| {label} | {peer} |");
        for family in &families {
            let record = groups[group].iter().find(|record| record.family() == *family);
            let figure = |who| record.and_then(|record| record.get(scenario, who, measure));
            let _ = match (figure(PEERS[0].name), figure(peer)) {
                (Some(ours), Some(theirs)) => {
                    let mark = if theirs < ours { "**" } else { "" };
                    write!(out, " {} | {} ({mark}{}{mark}) |", number(ours), number(theirs), number(ours / theirs))
                }
                _ => write!(out, "  |  |"),
            };
        }
        out.push('\n');
    }
    out
}

const STYLE: &str = "text { font: 15px sans-serif; fill: #1f2328 } .plot { fill: #ffffff; stroke: #d1d9e0 } .ours { fill: #1a7f37 } \
    .over { fill: #cf222e } .peer { fill: #8c959f } .limit { stroke: #1f2328; stroke-dasharray: 5 4 } .head { font-weight: bold } \
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .plot { fill: #0d1117; stroke: #3d444d } .ours { fill: #3fb950 } \
    .over { fill: #f85149 } .peer { fill: #6e7681 } .limit { stroke: #e6edf3 } }";
const LIMIT: f64 = 100.0;
/// Pixels for a request, and where the bars begin.
const SCALE: f64 = 2.2;
const LEFT: f64 = 280.0;

/// Returns the picture: how much each algorithm admits in its worst window, as a bar. Above the limit, the bar is red.
pub(super) fn boundary(memory: &[Record]) -> String {
    let most =
        |who: &str| memory.iter().filter_map(|record| record.get("admitted", who, "boundary")).fold(0.0, f64::max);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 250\" width=\"800\" height=\"250\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"plot\" x=\"0.5\" y=\"0.5\" width=\"799\" height=\"249\" rx=\"8\"/>\n\
         <text class=\"head\" x=\"20\" y=\"34\">Limit: 100 per second. 200 requests just before a boundary, 200 just after it.</text>\n\
         <text x=\"20\" y=\"58\">The most requests admitted within one second:</text>\n"
    );
    let bars = [("limitador", "fixed window"), ("governor", "GCRA"), (PEERS[0].name, "sliding window log")];
    for (i, (who, algorithm)) in bars.into_iter().enumerate() {
        let (y, admitted) = (88 + 48 * i, most(who));
        let who = if who == PEERS[0].name { "exact-limiter" } else { who };
        let (within, above) = (admitted.min(LIMIT) * SCALE, (admitted - LIMIT).max(0.0) * SCALE);
        let class = if above > 0.0 { "peer" } else { "ours" };
        let _ = write!(
            out,
            "<text x=\"20\" y=\"{}\">{who}: {algorithm}</text>\n\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{within}\" height=\"30\"/>\n\
             <rect class=\"over\" x=\"{}\" y=\"{y}\" width=\"{above}\" height=\"30\"/>\n\
             <text class=\"head\" x=\"{}\" y=\"{}\">{admitted}</text>\n",
            y + 20,
            LEFT + within,
            LEFT + within + above + 10.0,
            y + 20,
        );
    }
    let at = LEFT + LIMIT * SCALE;
    out + &format!(
        "<path class=\"limit\" d=\"M{at} 78V222\"/>\n<text x=\"{at}\" y=\"240\" text-anchor=\"middle\">the limit</text>\n</svg>\n"
    )
}
