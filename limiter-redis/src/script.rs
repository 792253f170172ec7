//! The scripts that run inside Redis.

use std::sync::LazyLock;

use redis::{Cmd, Script};

use crate::format::NUMBERS;

const HEAD: &str = include_str!("lua/head.lua");
const ENTRY: &str = include_str!("lua/entry.lua");
const FAST: &str = include_str!("lua/fast.lua");
const COUNT: &str = include_str!("lua/count.lua");
const ENCODE: &str = include_str!("lua/encode.lua");
const LOG: &str = include_str!("lua/log.lua");
const EVALUATE: &str = include_str!("lua/evaluate.lua");
const MERGE: &str = include_str!("lua/merge.lua");
const APPEND: &str = include_str!("lua/append.lua");
const APPLY_GENERAL: &str = include_str!("lua/apply.lua");
const WRITE_END: &str = include_str!("lua/write.lua");
const CHANGE: &str = include_str!("lua/change.lua");
const SETTLE_END: &str = include_str!("lua/settle.lua");
const RENEWAL: &str = include_str!("lua/renew.lua");
const INSPECT_END: &str = include_str!("lua/inspect.lua");

/// The fast path is one loop over the operations, because calling a function takes time and joining texts does not. The files of the
/// general path are a block that it skips: making their functions takes as long as a command or two.
pub(crate) static APPLY: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(&[
        HEAD,
        ENTRY,
        FAST,
        "for i = 1, count do\n",
        COUNT,
        "if is_common then\n",
        ENCODE,
        "end\nif not is_common then break end\nend\n",
        "if not is_common then\n",
        LOG,
        EVALUATE,
        MERGE,
        APPEND,
        APPLY_GENERAL,
        "end\n",
        WRITE_END,
    ])
});
pub(crate) static SETTLE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[HEAD, ENTRY, LOG, CHANGE, SETTLE_END]));
pub(crate) static RENEW: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(&[HEAD, ENTRY, LOG, MERGE, APPEND, CHANGE, RENEWAL, WRITE_END])
});
pub(crate) static INSPECT: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[HEAD, ENTRY, LOG, INSPECT_END]));

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

/// Returns the commands in the line of a script that a server's error points to. Up to Redis 7.0, an error does not identify the
/// command that the user must not run.
pub(crate) fn commands_at(error: &str) -> Option<String> {
    let (_, after) = error.split_once("@user_script:")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    let before: usize = digits.parse::<usize>().ok()?.checked_sub(1)?;
    let script = [&*APPLY, &*SETTLE, &*RENEW, &*INSPECT]
        .into_iter()
        .find(|script| error.contains(&script.sha1))?;
    let line = script.text.lines().nth(before)?;
    let mut commands: Vec<_> = line
        .split("('")
        .filter_map(|call| call.split_once('\''))
        .map(|(word, _)| word)
        .filter(|word| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
        .collect();
    commands.sort_unstable();
    commands.dedup();
    (!commands.is_empty()).then(|| commands.join(" or "))
}

/// Replaces the names of numbers. Reading a local variable would take the server longer.
fn fill_in(file: &str) -> String {
    let mut text = String::with_capacity(file.len());
    let mut rest = file;
    while let Some(start) = rest.find(in_name) {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !in_name(c)).unwrap_or(word.len()));
        text += before;
        match NUMBERS.iter().find(|(name, _)| *name == word) {
            Some((_, number)) => text += &number.to_string(),
            None => text += word,
        }
        rest = after;
    }
    text + rest
}

fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
