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

    /// The command that runs the script if the server knows it, or else the one that brings it.
    pub(crate) fn call(&self, bring: bool, key: &[u8], args: &[Arg<'_>]) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + args.len() + 1, 128 + key.len());
        if bring {
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

/// The scripts share what they know of entries, after they have named the key; common operations need none of it.
macro_rules! source {
    ($($file:literal),*) => {
        LazyLock::new(|| Source::new(concat!($(include_str!(concat!("lua/", $file))),*)))
    };
}

pub(crate) static APPLY: LazyLock<Source> = source!("apply.lua", "entry.lua", "apply_general.lua");
pub(crate) static SETTLE: LazyLock<Source> = source!("settle.lua", "entry.lua", "settle_body.lua");
pub(crate) static INSPECT: LazyLock<Source> = source!("inspect.lua", "entry.lua", "inspect_body.lua");
