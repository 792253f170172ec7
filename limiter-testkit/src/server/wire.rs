//! The part of the Redis protocol that is needed to start and control a server.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply from a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number, a status or an error message. An error starts with its code.
    Text(String),
    /// Bytes; `None` for a null reply.
    Bytes(Option<Vec<u8>>),
    /// A list.
    List(Vec<Reply>),
}

impl Reply {
    /// Returns the reply as text, with the items of a list on separate lines.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned(),
            Self::List(items) => items.iter().map(Self::text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Returns the reply as a number; 0 if it is not a number.
    #[must_use]
    pub fn int(&self) -> i64 {
        self.text().parse().unwrap_or(0)
    }
}

/// Sends one command over a new connection.
pub(super) fn command(port: u16, args: &[&[u8]], timeout: Duration) -> io::Result<Reply> {
    let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    (&stream).write_all(&request)?;
    read(&mut BufReader::new(&stream))
}

fn read(stream: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("unexpected answer {line:?}"));
    let (sort, rest) = line.trim_end().split_at_checked(1).ok_or_else(malformed)?;
    let number = || rest.parse::<i64>().map_err(|_| malformed());
    match sort {
        "+" | "-" | ":" => Ok(Reply::Text(rest.to_owned())),
        "$" => {
            let Ok(len) = usize::try_from(number()?) else { return Ok(Reply::Bytes(None)) };
            let mut bytes = vec![0; len + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(len);
            Ok(Reply::Bytes(Some(bytes)))
        }
        "*" => (0..number()?.max(0)).map(|_| read(stream)).collect::<io::Result<_>>().map(Reply::List),
        _ => Err(malformed()),
    }
}
