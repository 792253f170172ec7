//! The input of a pass.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::path::Path;

use anyhow::Context;

use crate::usage_error::UsageError;

/// A trace that is read once or twice. A stream that must be read twice is first copied to a temporary file.
pub(crate) struct Input {
    /// The name used in messages.
    pub(crate) name: String,
    content: Content,
}

enum Content {
    File(File),
    Stream(Box<dyn Read>),
}

impl Input {
    pub(crate) fn open(path: Option<&Path>, twice: bool) -> anyhow::Result<Self> {
        let (name, content) = match path {
            Some(path) if path != Path::new("-") => {
                let name = path.display().to_string();
                let opened = || File::open(path).and_then(|file| Ok((file.metadata()?, file)));
                let (metadata, file) = opened().with_context(|| format!("cannot open {name}"))?;
                anyhow::ensure!(!metadata.is_dir(), "cannot read {name}: it is a directory");
                (
                    name,
                    if metadata.is_file() {
                        Content::File(file)
                    } else {
                        Content::Stream(Box::new(file))
                    },
                )
            }
            None if io::stdin().is_terminal() => {
                return Err(
                    UsageError("expected a FILE, or - for standard input".to_owned()).into(),
                );
            }
            _ => (
                "standard input".to_owned(),
                Content::Stream(Box::new(io::stdin())),
            ),
        };
        let content = match content {
            Content::Stream(mut stream) if twice => {
                let mut copy = tempfile::tempfile().context("cannot create a temporary file")?;
                io::copy(&mut stream, &mut copy)
                    .with_context(|| format!("cannot copy {name} to a temporary file"))?;
                copy.rewind()?;
                Content::File(copy)
            }
            content => content,
        };
        Ok(Self { name, content })
    }

    /// Returns the number of bytes. `None` if it is unknown.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.content {
            Content::File(file) => file.metadata().ok().map(|metadata| metadata.len()),
            Content::Stream(_) => None,
        }
    }

    /// Rewinds a trace that was opened for reading twice.
    pub(crate) fn rewind(&mut self) -> io::Result<()> {
        match &mut self.content {
            Content::File(file) => file.rewind(),
            Content::Stream(_) => Err(io::ErrorKind::NotSeekable.into()),
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.content {
            Content::File(file) => file.read(buffer),
            Content::Stream(stream) => stream.read(buffer),
        }
    }
}
