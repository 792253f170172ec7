//! Chunked input with lookahead.

use std::fmt;
use std::io::{self, ErrorKind, Read};

/// The maximum length of a row in bytes. A longer row is malformed: usually a quote was never closed.
pub const MAX_ROW: usize = 16 << 20;

/// The sizes of the first read and of all further reads.
const FIRST_READ: usize = 1 << 10;
const NEXT_READ: usize = 128 << 10;

/// A reader with a buffer that grows on demand, to at most [`MAX_ROW`].
pub(super) struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    consumed: u64,
}

impl<R> fmt::Debug for Source<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("consumed", &self.consumed).finish_non_exhaustive()
    }
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: vec![0; FIRST_READ], start: 0, end: 0, consumed: 0 }
    }

    /// Returns the bytes that have been read but not consumed.
    #[inline]
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    #[inline]
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        self.consumed += bytes as u64;
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Reads more bytes. Returns `false` at the end of the input, or if [`MAX_ROW`] bytes are already buffered.
    pub(super) fn read_more(&mut self) -> io::Result<bool> {
        let filled = self.end == self.buffer.len();
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end >= MAX_ROW {
            return Ok(false);
        }
        if filled && self.buffer.len() < NEXT_READ {
            self.buffer.resize(NEXT_READ, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.resize((2 * self.end).min(MAX_ROW), 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads until at least one byte is buffered. Returns `false` at the end of the input.
    #[inline]
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        Ok(self.start < self.end || self.read_more()?)
    }

    /// Returns the length of the next line, including its line feed; 0 at the end of the input. Returns `None` if the
    /// line is longer than [`MAX_ROW`].
    pub(super) fn line_length(&mut self) -> io::Result<Option<usize>> {
        let mut searched = 0;
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.data()[searched..]) {
                return Ok(Some(searched + found + 1));
            }
            searched = self.data().len();
            if !self.read_more()? {
                return Ok((searched < MAX_ROW).then_some(searched));
            }
        }
    }

    /// Consumes everything up to and including the next line feed.
    pub(super) fn skip_line(&mut self) -> io::Result<()> {
        while self.fill()? {
            if let Some(found) = memchr::memchr(b'\n', self.data()) {
                self.consume(found + 1);
                return Ok(());
            }
            self.consume(self.data().len());
        }
        Ok(())
    }
}
