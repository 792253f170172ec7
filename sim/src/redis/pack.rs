//! The formats of Lua's `struct` library that the scripts use: big-endian integers, signed or not, of up to eight bytes.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Value};

fn fails<T>(text: &str) -> Result<T> {
    Err(Error::RuntimeError(text.to_owned()))
}

/// Reads a format: for each number its size, and whether it is signed.
fn sizes(format: &[u8]) -> Result<Vec<(usize, bool)>> {
    let Some(mut rest) = format.strip_prefix(b">") else {
        return fails("a format begins with >");
    };
    let mut sizes = Vec::with_capacity(8);
    while let [kind, after @ ..] = rest {
        let (size, after) = match after {
            [digit @ b'1'..=b'8', after @ ..] => (usize::from(digit - b'0'), after),
            after => (if *kind == b'B' { 1 } else { 4 }, after),
        };
        if !b"BIi".contains(kind) {
            return fails("a format has B, I and i alone");
        }
        sizes.push((size, *kind == b'i'));
        rest = after;
    }
    Ok(sizes)
}

/// Returns numbers as bytes.
pub(super) fn pack(lua: &Lua, (format, numbers): (LuaString, MultiValue)) -> Result<LuaString> {
    let sizes = sizes(&format.as_bytes())?;
    let mut bytes = Vec::with_capacity(48);
    for (i, (size, _)) in sizes.into_iter().enumerate() {
        let number = match numbers.get(i) {
            Some(Value::Integer(number)) => *number,
            Some(Value::Number(number)) if *number < 0.0 => *number as i64,
            Some(Value::Number(number)) => *number as u64 as i64,
            _ => return fails("a number expected"),
        };
        bytes.extend_from_slice(&number.to_be_bytes()[8 - size..]);
    }
    lua.create_string(bytes)
}

/// Reads numbers from bytes, from a place on that counts from 1. Returns them and the place after them.
pub(super) fn unpack(
    _: &Lua,
    (format, bytes, place): (LuaString, LuaString, Option<usize>),
) -> Result<MultiValue> {
    let bytes = bytes.as_bytes();
    let mut values = MultiValue::new();
    let mut start = place.unwrap_or(1).wrapping_sub(1);
    for (size, is_signed) in sizes(&format.as_bytes())? {
        let Some(part) = bytes.get(start..start.saturating_add(size)) else {
            return fails("data string too short");
        };
        let number = part
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let unused = 64 - 8 * size as u32;
        let number = if is_signed {
            ((number << unused) as i64 >> unused) as f64
        } else {
            number as f64
        };
        values.push_back(Value::Number(number));
        start += size;
    }
    values.push_back(Value::Number((start + 1) as f64));
    Ok(values)
}
