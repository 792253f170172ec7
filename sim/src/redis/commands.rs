//! The commands that the store and its scripts use.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;

use redis::Value;

use super::sorted_set::{LexBound, SortedSet};

/// The keys of a server, and the state that commands depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataSet {
    keys: BTreeMap<Vec<u8>, Key>,
    /// The time of the current command or script, in microseconds.
    pub(crate) now: u64,
    /// Whether memory is full.
    pub(crate) is_full: bool,
    /// Whether the current script has written. Redis checks its memory only before the first write.
    pub(crate) has_written: bool,
}

#[derive(Clone, Debug, Default)]
struct Key {
    set: SortedSet,
    /// In milliseconds.
    expires: Option<u64>,
}

/// The text of an error reply.
pub(crate) type Refused = String;

fn number<T: FromStr>(text: &[u8]) -> Result<T, Refused> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

fn score(text: &[u8]) -> Result<f64, Refused> {
    number(text).map_err(|_| "ERR value is not a valid float".to_owned())
}

fn bound(text: &[u8]) -> Result<LexBound<'_>, Refused> {
    LexBound::parse(text).ok_or_else(|| "ERR min or max not valid string range item".to_owned())
}

/// Returns the ranks between two indices, of which negative ones count from the end.
fn ranks(len: usize, from: &[u8], to: &[u8]) -> Result<Range<usize>, Refused> {
    let len = len as i64;
    let place = |index: i64| if index < 0 { index + len } else { index };
    let from = place(number(from)?).max(0);
    let to = place(number(to)?).min(len - 1);
    Ok(if from > to {
        0..0
    } else {
        from as usize..to as usize + 1
    })
}

fn count(number: usize) -> Result<Value, Refused> {
    Ok(Value::Int(number as i64))
}

impl DataSet {
    fn now_ms(&self) -> u64 {
        self.now / 1000
    }

    /// Removes a key that has expired. Returns `true` if it exists.
    pub(crate) fn holds(&mut self, key: &[u8]) -> bool {
        let now = self.now_ms();
        let expired = |key: &Key| key.expires.is_some_and(|expires| now > expires);
        if self.keys.get(key).is_some_and(expired) {
            self.keys.remove(key);
        }
        self.keys.contains_key(key)
    }

    /// Executes a command of a client or a script.
    pub(crate) fn execute(&mut self, args: &[&[u8]]) -> Result<Value, Refused> {
        let Some((name, args)) = args.split_first() else {
            return Err("ERR no command".to_owned());
        };
        let adds = *name == b"ZADD";
        let writes =
            adds || name.starts_with(b"ZREM") || name.starts_with(b"PEXPIRE") || *name == b"UNLINK";
        if self.is_full && adds && !self.has_written {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        self.has_written |= writes;
        let Some((key, args)) = args.split_first() else {
            return match *name {
                b"TIME" => {
                    let part = |number: u64| Value::BulkString(number.to_string().into_bytes());
                    Ok(Value::Array(vec![
                        part(self.now / 1_000_000),
                        part(self.now % 1_000_000),
                    ]))
                }
                _ => Err(wrong_arguments(name)),
            };
        };
        let now = self.now_ms();
        self.holds(key);
        if *name == b"MEMORY" {
            let found = args.first().and_then(|key| self.keys.get(*key));
            return Ok(found.map_or(Value::Nil, |key| {
                Value::Int(64 * (1 + key.set.len() as i64))
            }));
        }
        let mut found = self.keys.remove(*key);
        let is_new = found.is_none();
        let reply = on_key(name, found.get_or_insert_default(), is_new, args, now);
        if let Some(held) = found.filter(|held| held.set.len() > 0) {
            self.keys.insert(key.to_vec(), held);
        }
        reply
    }
}

fn wrong_arguments(name: &[u8]) -> Refused {
    let name = String::from_utf8_lossy(name).to_lowercase();
    format!("ERR wrong number of arguments or an unknown command '{name}'")
}

/// Executes a command about one key. A key without members goes.
fn on_key(
    name: &[u8],
    key: &mut Key,
    is_new: bool,
    args: &[&[u8]],
    now: u64,
) -> Result<Value, Refused> {
    let set = &mut key.set;
    let bulk = |member: &[u8]| Value::BulkString(member.to_vec());
    let list = |ranks: Range<usize>| {
        Value::Array(set.members(ranks).map(|(_, member)| bulk(member)).collect())
    };
    let reversed = |ranks: Range<usize>| {
        Value::Array(
            set.members(ranks)
                .rev()
                .map(|(_, member)| bulk(member))
                .collect(),
        )
    };
    let lex = |min: &[u8], max: &[u8]| Ok::<_, Refused>(set.between(&bound(min)?, &bound(max)?));
    match (name, args) {
        (b"ZADD", [_, _, ..]) if args.len().is_multiple_of(2) => {
            let pairs = args
                .chunks_exact(2)
                .map(|pair| Ok((score(pair[0])?, pair[1])));
            let pairs = pairs.collect::<Result<Vec<_>, Refused>>()?;
            count(
                pairs
                    .iter()
                    .filter(|(score, member)| set.add(*score, member))
                    .count(),
            )
        }
        (b"ZREM", [_, ..]) => count(args.iter().filter(|member| set.remove(member)).count()),
        (b"ZCARD", []) => count(set.len()),
        (b"ZSCORE", [member]) => Ok(set
            .score(member)
            .map_or(Value::Nil, |score| bulk(score.to_string().as_bytes()))),
        (b"ZRANK", [member]) => Ok(set
            .rank(member)
            .map_or(Value::Nil, |rank| Value::Int(rank as i64))),
        (b"ZRANGE", [from, to]) => Ok(list(ranks(set.len(), from, to)?)),
        (b"ZRANGE", [from, to, b"REV"]) => {
            let len = set.len();
            let ranks = ranks(len, from, to)?;
            Ok(reversed(len - ranks.end..len - ranks.start))
        }
        (b"ZRANGE", [from, to, b"WITHSCORES"]) => {
            let members = set.members(ranks(set.len(), from, to)?);
            let pair = |(score, member): &(f64, super::sorted_set::Member)| {
                [bulk(member), bulk(score.to_string().as_bytes())]
            };
            Ok(Value::Array(members.flat_map(pair).collect()))
        }
        (b"ZRANGEBYLEX", [min, max]) => Ok(list(lex(min, max)?)),
        (b"ZRANGEBYLEX", [min, max, b"LIMIT", skip, most]) => {
            let ranks = lex(min, max)?;
            let start = (ranks.start + number::<usize>(skip)?).min(ranks.end);
            Ok(list(
                start..ranks.end.min(start.saturating_add(number(most)?)),
            ))
        }
        (b"ZREVRANGEBYLEX", [max, min, b"LIMIT", skip, most]) => {
            let ranks = lex(min, max)?;
            let end = ranks.end.saturating_sub(number(skip)?).max(ranks.start);
            Ok(reversed(
                ranks.start.max(end.saturating_sub(number(most)?))..end,
            ))
        }
        (b"ZLEXCOUNT", [min, max]) => count(lex(min, max)?.len()),
        (b"ZCOUNT", [b"-inf", max]) => match max.strip_prefix(b"(") {
            Some(max) => count(set.below(score(max)?)),
            None => count(set.below(score(max)?.next_up())),
        },
        (b"ZREMRANGEBYLEX", [min, max]) => {
            let ranks = lex(min, max)?;
            count(set.remove_ranks(ranks))
        }
        (b"ZREMRANGEBYRANK", [from, to]) => {
            let ranks = ranks(set.len(), from, to)?;
            count(set.remove_ranks(ranks))
        }
        (b"UNLINK", []) => {
            *key = Key::default();
            count(usize::from(!is_new))
        }
        (b"PTTL", []) => Ok(Value::Int(match key.expires {
            _ if is_new => -2,
            None => -1,
            Some(expires) => expires.saturating_sub(now) as i64,
        })),
        (b"PEXPIRE" | b"PEXPIREAT", [time]) => {
            let expires = number::<u64>(time)? + if name == b"PEXPIRE" { now } else { 0 };
            match expires <= now {
                true => *key = Key::default(),
                false => key.expires = Some(expires),
            }
            count(usize::from(!is_new))
        }
        _ => Err(wrong_arguments(name)),
    }
}
