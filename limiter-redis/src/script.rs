//! The scripts that run inside Redis.

use std::sync::LazyLock;

use redis::{Cmd, Script};

use crate::format::PLACEHOLDERS;

const HEAD: &str = include_str!("lua/head.lua");
const LOAD: &str = include_str!("lua/load.lua");
const PRELUDE: &str = include_str!("lua/prelude.lua");
const APPLY_FAST_FILE: &str = include_str!("lua/apply_fast.lua");
const OPERATION: &str = include_str!("lua/operation.lua");
const MERGE: &str = include_str!("lua/merge.lua");
const APPLY_FILE: &str = include_str!("lua/apply.lua");
const APPLY_ALL_FILE: &str = include_str!("lua/apply_all.lua");
const SETTLE_FILE: &str = include_str!("lua/settle.lua");
const INSPECT_FILE: &str = include_str!("lua/inspect.lua");

/// The fast path comes before the prelude: making the functions takes as long as a command or two.
pub(crate) static APPLY: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(&[
        HEAD,
        LOAD,
        APPLY_FAST_FILE,
        PRELUDE,
        OPERATION,
        MERGE,
        APPLY_FILE,
    ])
});
/// The single operation as a function, and a loop.
pub(crate) static APPLY_ALL: LazyLock<LuaScript> = LazyLock::new(|| {
    const BEGIN: &str = "local function operate(key, request, windows, since, newest, pause)\n";
    let files = [
        BEGIN,
        APPLY_FAST_FILE,
        PRELUDE,
        OPERATION,
        MERGE,
        APPLY_FILE,
        "end\n",
        APPLY_ALL_FILE,
    ];
    LuaScript::new(&[&[HEAD][..], &files].concat())
});
pub(crate) static SETTLE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[HEAD, LOAD, PRELUDE, SETTLE_FILE]));
pub(crate) static INSPECT: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[HEAD, LOAD, PRELUDE, INSPECT_FILE]));

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct LuaScript {
    text: String,
    sha1: String,
}

impl LuaScript {
    /// Joins the files of a script and replaces names with numbers.
    fn new(files: &[&str]) -> Self {
        let text = fill_in(&files.concat());
        Self {
            sha1: Script::new(&text).get_hash().to_owned(),
            text,
        }
    }

    /// Returns the command that runs the script. With `load` it carries the whole text, for a server that does not know it.
    /// Empty arguments at the end are left out.
    pub(crate) fn call(&self, load: bool, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
        let count = args
            .iter()
            .rposition(|arg| !arg.is_empty())
            .map_or(0, |last| last + 1);
        let mut cmd = Cmd::with_capacity(3 + keys.len() + count, 128 * keys.len());
        if load {
            cmd.arg("EVAL").arg(&self.text);
        } else {
            cmd.arg("EVALSHA").arg(&self.sha1);
        }
        cmd.arg(keys.len()).arg(keys).arg(&args[..count]);
        cmd
    }
}

/// Replaces each `$NAME` by its number.
fn fill_in(file: &str) -> String {
    let mut parts = file.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = split_name(part);
        match PLACEHOLDERS.iter().find(|(known, _)| *known == name) {
            Some((_, number)) => text += &number.to_string(),
            // Redis refuses the script.
            None => text += &format!("${name}"),
        }
        text += rest;
    }
    text
}

/// Splits a text behind the name that it begins with.
fn split_name(text: &str) -> (&str, &str) {
    let in_name = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    text.split_at(
        text.bytes()
            .position(|byte| !in_name(byte))
            .unwrap_or(text.len()),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FILES: [&str; 9] = [
        HEAD,
        PRELUDE,
        OPERATION,
        MERGE,
        APPLY_FAST_FILE,
        APPLY_FILE,
        APPLY_ALL_FILE,
        SETTLE_FILE,
        INSPECT_FILE,
    ];

    /// The names of the numbers in a file.
    fn names(file: &str) -> BTreeSet<&str> {
        file.split('$')
            .skip(1)
            .map(|part| split_name(part).0)
            .collect()
    }

    #[test]
    fn the_scripts_use_every_placeholder_and_no_other_name() {
        let known: BTreeSet<&str> = PLACEHOLDERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(known.len(), PLACEHOLDERS.len(), "a name has one number");
        let used: BTreeSet<&str> = FILES.into_iter().flat_map(names).collect();
        let unknown: Vec<_> = used.difference(&known).collect();
        let unused: Vec<_> = known.difference(&used).collect();
        assert!(
            unknown.is_empty() && unused.is_empty(),
            "unknown: {unknown:?}, unused: {unused:?}"
        );
        for script in [&APPLY, &APPLY_ALL, &SETTLE, &INSPECT] {
            assert!(!script.text.contains('$'), "a name is left");
        }
    }
}
