//! Detects the format of a trace.

use std::io::Read;

use super::row::{Format, TraceError, shown, unreadable};
use super::source::Source;
use super::{combined, csv};

/// The number of bytes examined.
const DETECT_BYTES: usize = 64 << 10;

/// Returns the given format, or detects it from the content. Consumes a byte order mark.
pub(super) fn detect<R: Read>(source: &mut Source<R>, format: Option<Format>) -> Result<Format, TraceError> {
    while source.data().len() < DETECT_BYTES && source.read_more()? {}
    let compressed = [(&b"\x1f\x8b"[..], "gzip", "gunzip -c"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc")];
    for (magic, name, tool) in compressed {
        if source.data().starts_with(magic) {
            let text =
                format!("expected text, found {name}: decompress it first, as in {tool} FILE | limiter replay -");
            return Err(unreadable(1, text));
        }
    }
    if source.data().starts_with(b"\xef\xbb\xbf") {
        source.consume(3);
    }
    if let Some(format) = format {
        return Ok(format);
    }
    let ahead = &source.data()[..source.data().len().min(DETECT_BYTES)];
    let mut lines = ahead.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    if csv::looks_like_header(first) {
        return Ok(Format::Csv);
    }
    if combined::split(first).or_else(|| lines.find_map(combined::split)).is_some() {
        return Ok(Format::Combined);
    }
    let text = "expected a CSV header row with the columns at and key, or the lines of a web server's access log";
    Err(unreadable(1, format!("{text}, found {}", if first.is_empty() { "nothing".into() } else { shown(first) })))
}
