//! The shell that stops a server when the test program ends, for any reason.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Stops its server when dropped.
#[derive(Debug)]
pub(super) struct Keeper(Child);

impl Keeper {
    /// Runs a script in a folder. Returns the first line that it prints.
    ///
    /// The script starts the server, prints its process id, reads `keep` from its standard input until that closes, and stops the
    /// server. If `keep` is empty, the test program ended without a drop, so nobody else removes the folder.
    pub(super) fn start<A: AsRef<str>>(
        folder: &Path,
        script: &str,
        args: impl IntoIterator<Item = A>,
    ) -> io::Result<(Self, String)> {
        let script = format!("{script}\n[ -n \"$keep\" ] || rm -rf \"$PWD\"");
        let mut command = Command::new("sh");
        command
            .current_dir(folder)
            .args(["-c", &script, "keeper"])
            .args(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok((Self(shell), line))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"keep the data");
        }
        let _ = self.0.wait();
    }
}
