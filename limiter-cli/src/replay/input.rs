//! The input of a replay.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::path::Path;

use anyhow::Context;

use crate::usage_error::UsageError;

/// A trace that is read once or twice. A stream that must be read twice is copied to a temporary file.
pub(crate) struct Input {
    /// The name used in messages.
    pub(crate) name: String,
    content: Content,
}

enum Content {
    File(File),
    Stream { stream: Box<dyn Read>, copy: Option<File> },
}

impl Input {
    pub(crate) fn open(path: Option<&Path>, twice: bool) -> anyhow::Result<Self> {
        let copy = || if twice { tempfile::tempfile().map(Some) } else { Ok(None) };
        let file = match path {
            Some(path) if path != Path::new("-") => path,
            asked => {
                if asked.is_none() && io::stdin().is_terminal() {
                    return Err(UsageError("expected a FILE, or - for standard input".to_owned()).into());
                }
                let content = Content::Stream { stream: Box::new(io::stdin()), copy: copy()? };
                return Ok(Self { name: "standard input".to_owned(), content });
            }
        };
        let name = file.display().to_string();
        let opened = File::open(file).with_context(|| format!("cannot open {name}"))?;
        let metadata = opened.metadata().with_context(|| format!("cannot open {name}"))?;
        anyhow::ensure!(!metadata.is_dir(), "cannot read {name}: it is a directory");
        let content = if metadata.is_file() {
            Content::File(opened)
        } else {
            Content::Stream { stream: Box::new(opened), copy: copy()? }
        };
        Ok(Self { name, content })
    }

    /// Returns the number of bytes; `None` if it is unknown.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.content {
            Content::File(file) => file.metadata().ok().map(|metadata| metadata.len()),
            Content::Stream { .. } => None,
        }
    }

    /// Returns to the beginning of a trace that was opened for reading twice.
    pub(crate) fn rewind(self) -> io::Result<Self> {
        let mut file = match self.content {
            Content::File(file) => file,
            Content::Stream { copy: Some(copy), .. } => copy,
            Content::Stream { copy: None, .. } => return Err(io::ErrorKind::NotSeekable.into()),
        };
        file.rewind()?;
        Ok(Self { name: self.name, content: Content::File(file) })
    }
}

impl Read for &mut Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.content {
            Content::File(file) => file.read(buffer),
            Content::Stream { stream, copy } => {
                let read = stream.read(buffer)?;
                if let Some(copy) = copy {
                    copy.write_all(&buffer[..read])?;
                }
                Ok(read)
            }
        }
    }
}
