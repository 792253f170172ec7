//! A Redis as a value: its keys, and the shipped scripts in Lua.

mod commands;
mod pack;
mod sorted_set;

use std::collections::HashMap;
use std::fmt;

use mlua::{Function, Lua, LuaString, Table, Value as LuaValue, Variadic};
use redis::{Arg, Cmd, RedisError, Script, Value};

use self::commands::{DataSet, Refused};

/// What Redis puts around a script. An error is a table, as in Redis 7.
const PRELUDE: &str = r"
local execute = ...
redis = { pcall = execute, call = function(...)
  local reply = execute(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end }
return function(script, keys, args)
  KEYS, ARGV = keys, args
  local is_done, reply = pcall(script)
  if is_done then return reply end
  return { err = type(reply) == 'table' and reply.err or 'ERR ' .. tostring(reply) }
end
";

/// A Redis server without its network: every command takes its time from the caller.
pub(crate) struct Redis {
    /// Holds the [`DataSet`] for the scripts.
    lua: Lua,
    run: Function,
    scripts: HashMap<Vec<u8>, Function>,
    /// A part of the scripts, and what replaces it.
    mistake: Option<(&'static str, &'static str)>,
}

/// The keys of a server at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Copy(DataSet);

impl Redis {
    /// Returns an empty server, which may make a mistake: it replaces a part of the scripts.
    pub(crate) fn new(mistake: Option<(&'static str, &'static str)>) -> Self {
        let lua = Lua::new();
        lua.set_app_data(DataSet::default());
        let run = prepare(&lua).expect("the prelude is correct");
        Self {
            lua,
            run,
            scripts: HashMap::new(),
            mistake,
        }
    }

    /// Executes a command at a time in microseconds.
    pub(crate) fn execute(&mut self, now: u64, command: &Cmd) -> Result<Value, RedisError> {
        let bytes = |arg| match arg {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        };
        let args: Vec<&[u8]> = command.args_iter().filter_map(bytes).collect();
        self.with_data(|data| (data.now, data.has_written) = (now, false));
        let reply = match &*args {
            [b"EVAL", text, count, rest @ ..] => {
                let text = String::from_utf8_lossy(text);
                let sha = Script::new(&text).get_hash().as_bytes().to_vec();
                let text = self.mistake.map_or(text.clone(), |(part, other)| {
                    text.replace(part, other).into()
                });
                let load = || {
                    self.lua
                        .load(&*text)
                        .set_name("@user_script")
                        .into_function()
                };
                let script = self
                    .scripts
                    .entry(sha.clone())
                    .or_insert_with(|| load().expect("the scripts compile"));
                let script = script.clone();
                self.eval(&sha, &script, count, rest)
            }
            [b"EVALSHA", sha, count, rest @ ..] => match self.scripts.get(*sha).cloned() {
                Some(script) => self.eval(sha, &script, count, rest),
                None => Err("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
            },
            args => self.with_data(|data| data.execute(args)),
        };
        reply.map_err(|text| error(&text))
    }

    fn with_data<T>(&self, change: impl FnOnce(&mut DataSet) -> T) -> T {
        change(
            &mut self
                .lua
                .app_data_mut::<DataSet>()
                .expect("nobody else holds it"),
        )
    }

    fn eval(
        &self,
        sha: &[u8],
        script: &Function,
        count: &[u8],
        rest: &[&[u8]],
    ) -> Result<Value, Refused> {
        let count: usize = String::from_utf8_lossy(count)
            .parse()
            .map_err(|_| "ERR Number of keys is malformed")?;
        let (keys, args) = rest
            .split_at_checked(count)
            .ok_or("ERR Number of keys is too large")?;
        let strings = |texts: &[&[u8]]| {
            let texts: mlua::Result<Vec<_>> = texts
                .iter()
                .map(|text| self.lua.create_string(text))
                .collect();
            self.lua.create_sequence_from(texts?)
        };
        let call = || {
            self.run
                .call::<LuaValue>((script, strings(keys)?, strings(args)?))
        };
        let reply = call().map_err(|error| format!("ERR {error}"))?;
        let place = || {
            format!(
                " script: {}, on @user_script:0.",
                String::from_utf8_lossy(sha)
            )
        };
        from_lua(&reply).map_err(|text| text + &place())
    }

    /// Forgets the scripts, as `SCRIPT FLUSH` does.
    pub(crate) fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Makes the server refuse to add, or accept it again.
    pub(crate) fn fill(&mut self, is_full: bool) {
        self.with_data(|data| data.is_full = is_full);
    }

    /// Removes a key that has expired at a time. Returns `true` if it exists.
    pub(crate) fn holds(&self, now: u64, key: &[u8]) -> bool {
        self.with_data(|data| {
            data.now = now;
            data.holds(key)
        })
    }

    /// Returns a copy of the keys.
    pub(crate) fn copy(&self) -> Copy {
        Copy(self.with_data(|data| data.clone()))
    }

    /// Replaces the keys.
    pub(crate) fn restore(&mut self, Copy(keys): Copy) {
        self.with_data(|data| *data = keys);
    }
}

impl Default for Redis {
    fn default() -> Self {
        Self::new(None)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

/// Returns the client's error for an error reply.
pub(crate) fn error(text: &str) -> RedisError {
    let line: String = text.chars().filter(|c| !c.is_control()).collect();
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
    reply
        .and_then(Value::extract_error)
        .expect_err("an error reply")
}

/// Defines `redis` and `struct`. Returns the function that runs a script.
fn prepare(lua: &Lua) -> mlua::Result<Function> {
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(pack::pack)?)?;
    library.set("unpack", lua.create_function(pack::unpack)?)?;
    lua.globals().set("struct", library)?;
    let execute = lua.create_function(|lua, args: Variadic<LuaValue>| {
        let args: Vec<Vec<u8>> = args.iter().map(argument).collect::<mlua::Result<_>>()?;
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let reply = lua
            .app_data_mut::<DataSet>()
            .expect("nobody else holds it")
            .execute(&args);
        match reply {
            Ok(reply) => to_lua(lua, &reply),
            Err(text) => Ok(LuaValue::Table(lua.create_table_from([("err", text)])?)),
        }
    })?;
    lua.load(PRELUDE).set_name("=prelude").call(execute)
}

/// Returns an argument of a command as Redis prints it. Only whole numbers are arguments.
fn argument(value: &LuaValue) -> mlua::Result<Vec<u8>> {
    match value {
        LuaValue::String(text) => Ok(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Ok(number.to_string().into_bytes()),
        LuaValue::Number(number) if number.trunc() == *number => {
            Ok(format!("{number:.0}").into_bytes())
        }
        other => Err(mlua::Error::RuntimeError(format!(
            "{other:?} is no argument of a command"
        ))),
    }
}

fn to_lua(lua: &Lua, reply: &Value) -> mlua::Result<LuaValue> {
    Ok(match reply {
        Value::Int(number) => LuaValue::Number(*number as f64),
        Value::BulkString(bytes) => LuaValue::String(lua.create_string(bytes)?),
        Value::Array(items) => {
            let items: mlua::Result<Vec<_>> = items.iter().map(|item| to_lua(lua, item)).collect();
            LuaValue::Table(lua.create_sequence_from(items?)?)
        }
        _ => LuaValue::Boolean(false),
    })
}

fn from_lua(value: &LuaValue) -> Result<Value, Refused> {
    let bulk = |text: &LuaString| Value::BulkString(text.as_bytes().to_vec());
    Ok(match value {
        LuaValue::String(text) => bulk(text),
        LuaValue::Integer(number) => Value::Int(*number),
        LuaValue::Number(number) => Value::Int(*number as i64),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => return list(table),
        _ => Value::Nil,
    })
}

fn list(table: &Table) -> Result<Value, Refused> {
    if let Ok(text) = table.get::<LuaString>("err") {
        return Err(text.to_string_lossy());
    }
    let items = table.sequence_values::<LuaValue>().map_while(Result::ok);
    Ok(Value::Array(
        items
            .map(|item| from_lua(&item))
            .collect::<Result<_, _>>()?,
    ))
}
