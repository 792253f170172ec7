//! The lines of a trace.

use std::io::{BufRead, Read};

use super::MAX_ROW;
use super::row::{malformed, read_failed};

/// Reads lines, and reuses its buffer.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The latest line, with its end.
    pub(super) text: Vec<u8>,
    /// Its number, counted from 1.
    pub(super) number: u64,
}

impl Lines {
    /// Reads the next line that is not empty. Returns `None` at the end of the input.
    pub(super) fn read(&mut self, input: &mut impl BufRead) -> Option<anyhow::Result<()>> {
        loop {
            self.number += 1;
            self.text.clear();
            let mut line = input.by_ref().take(MAX_ROW as u64);
            let read = line.read_until(b'\n', &mut self.text);
            match read {
                Ok(0) => return None,
                Ok(MAX_ROW) if !self.text.ends_with(b"\n") => {
                    if let Err(error) = input.skip_until(b'\n') {
                        return Some(Err(read_failed(&error)));
                    }
                    let text = format!("expected a row of at most {MAX_ROW} bytes");
                    return Some(Err(malformed(self.number, text)));
                }
                Ok(_) if self.text.trim_ascii().is_empty() => {}
                Ok(_) => return Some(Ok(())),
                Err(error) => return Some(Err(read_failed(&error))),
            }
        }
    }
}
