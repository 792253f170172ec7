//! Detects the format of a trace.

use std::io::{Cursor, Read};

use super::row::{Format, read_failed, shown, unreadable};
use super::{combined, csv};

/// The number of bytes examined.
const DETECT_BYTES: u64 = 64 << 10;

/// Returns the beginning of the input without a byte order mark, and the given format or the one of the content.
pub(super) fn detect(
    input: &mut impl Read,
    format: Option<Format>,
) -> anyhow::Result<(Cursor<Vec<u8>>, Format)> {
    let mut head = Vec::new();
    input
        .take(DETECT_BYTES)
        .read_to_end(&mut head)
        .map_err(|error| read_failed(&error))?;
    let compressed = [
        (&b"\x1f\x8b"[..], "gzip", "gunzip -c"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    ];
    for (magic, name, tool) in compressed {
        if head.starts_with(magic) {
            let text = format!(
                "expected text, found {name}: decompress it first, as in {tool} FILE | limiter replay -"
            );
            return Err(unreadable(1, text));
        }
    }
    if head.starts_with(b"\xef\xbb\xbf") {
        head.drain(..3);
    }
    let format = match format {
        Some(format) => format,
        None => of_content(&head)?,
    };
    Ok((Cursor::new(head), format))
}

fn of_content(head: &[u8]) -> anyhow::Result<Format> {
    if csv::starts_with_header(head) {
        return Ok(Format::Csv);
    }
    let mut lines = head
        .split(|&b| b == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty());
    if lines.clone().any(|line| combined::split(line).is_some()) {
        return Ok(Format::Combined);
    }
    let first = lines.next().unwrap_or_default();
    let text = "expected a CSV header row with the columns at and key, or the lines of a web server's access log";
    Err(unreadable(
        1,
        format!(
            "{text}, found {}",
            if first.is_empty() {
                "nothing".into()
            } else {
                shown(first)
            }
        ),
    ))
}
