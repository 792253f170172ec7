//! The scripts that run inside Redis.

use std::sync::LazyLock;

use redis::{Cmd, Script};

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Source {
    text: &'static str,
    sha1: String,
}

impl Source {
    fn new(text: &'static str) -> Self {
        Self { text, sha1: Script::new(text).get_hash().to_owned() }
    }

    /// Returns the command that runs the script. With `load` it carries the whole text, for a server that does not know it.
    pub(crate) fn call(&self, load: bool, key: &[u8], args: &[Arg<'_>]) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + args.len() + 1, 128 + key.len());
        if load {
            cmd.arg("EVAL").arg(self.text);
        } else {
            cmd.arg("EVALSHA").arg(&self.sha1);
        }
        cmd.arg(1).arg(key);
        for arg in args {
            match arg {
                Arg::Number(number) => cmd.arg(*number),
                Arg::Bytes(bytes) => cmd.arg(*bytes),
            };
        }
        cmd
    }
}

/// An argument of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Joins the files of a script. What scripts share comes after the part that names the key; the fast path of `apply` needs none
/// of it and comes first.
macro_rules! source {
    ($($file:literal),*) => {
        LazyLock::new(|| Source::new(concat!($(include_str!(concat!("lua/", $file))),*)))
    };
}

pub(crate) static APPLY: LazyLock<Source> = source!("apply.lua", "entry.lua", "usage.lua", "apply_general.lua");
pub(crate) static SETTLE: LazyLock<Source> =
    source!("settle.lua", "entry.lua", "settle_body.lua", "usage.lua", "settle_answer.lua");
pub(crate) static INSPECT: LazyLock<Source> = source!("inspect.lua", "entry.lua", "inspect_body.lua");
