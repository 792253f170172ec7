//! Mistakes in the shipped scripts that the histories must find within 1,000 seeds.

use sim::{History, play_many};

/// What is wrong, a part of the scripts, and its replacement.
const IN_LUA: &str = "\
a repetition does not look for its entry | if id_of(member) == id then entry = member end | entry = nil
a late first attempt does not look for its repetition | if is_own and since and exact ~= 0 and now < parse('>I7', since, 15) | if false
a caller's id is forgotten early | log.t - at < (exact or longest.window) | log.t - at < 1000
a window does not include the lease | if place > 23 + 1 then | if window == 500000 then window = 400000 end if place > 23 + 1 then
an attempt past its deadline counts | now >= parse('>I7', args[1], 4) | false
a refund is applied to another entry | local target, t = find_receipt(log), log.t | local target, t = log.newest, log.t
an entry too many is dropped | op.cap - cost) | op.cap - cost - 1)
a key expires a cell early | (ttl % 64 + 1) * cell | (ttl % 64 - 1) * cell
a repetition looks for its entry no earlier than the clocks say | first) - 1000000 | first)
a window is a microsecond short | if place > 23 + 1 then | window = window - 1 if place > 23 + 1 then
a window is a microsecond long | if place > 23 + 1 then | window = window + 1 if place > 23 + 1 then
an entry that has expired is settled | log.t - at >= window then return nil | false then return nil
the newest entry counts at exactly the window | not newest or t - last >= window | not newest or t - last > window
the second entry counts at exactly the window | drops_one = t - oldest < window | drops_one = t - oldest <= window
the wait is for one unit too few | used <= max and rest + cost <= max | used <= max and rest + cost <= max + 1";

#[test]
fn each_mistake_in_lua_is_found() {
    let mut missed = Vec::new();
    for row in IN_LUA.lines() {
        let [mistake, part, other] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let found = play_many(0..1_000, History::new, Some((part, other)), 1);
        println!("{mistake}: {found:?}");
        if found.is_empty() {
            missed.push(mistake);
        }
    }
    let twice_as_fast = |seed| History::new(seed).with_server_speed(2.0);
    let found = play_many(0..1_000, twice_as_fast, None, 1);
    println!("a server whose clock is twice as fast: {found:?}");
    assert!(!found.is_empty() && missed.is_empty(), "{missed:?}");
}
