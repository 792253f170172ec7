
-- What precedes and follows an append, for apply.lua and apply_group.lua, after prelude.lua.

-- Lowers the running total that the new entries go on from: to 0 if they are the first that count, and otherwise long before it
-- overflows. Entries of one time sort by their totals, so it falls between two times only.
local function lower_total(is_first)
  if last >= t then return end
  if is_first then high, low = 0, 0 elseif high >= $FALL_FROM then high = high - $FALL end
end

-- Drops what no limit can see: the entries that have left the longest window, and those before the rank `kept`, or before `entry`
-- if that is -1. `expired` is the rank of the first entry in that window, if known, and `moved` how far the append moved the ranks.
local function trim(entry, kept, expired, longest, ids, moved)
  local first
  if kept == -1 then
    first = call('ZRANK', key, entry)
  else
    first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
    if kept then first = math.max(first, kept + moved) end
  end
  drop(ids, first - 1)
end

-- Sets when the key expires, unless the entry that was the newest has the same expiry.
local function keep_alive(now, given, newest, longest, ttl)
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + $GIVEN_TIME_GRACE_MS)
  elseif ttl == 0 then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  elseif not newest or ttl_of(newest, tag) ~= ttl or expiry(last, ttl) ~= expiry(t, ttl) then
    call('PEXPIREAT', key, expiry(t, ttl))
  end
end
