-- ARGV: the request in bytes (kind: 1 acquire, 2 attempt, 3 record, 4 peek; then 7 each: cost, then window and maximum of
-- each limit; then the id, a caller's 16 bytes or 8, of which the first two say how long the key is kept); the given time,
-- or '' or nothing; microseconds since the first sending, if this is a repetition.
-- The reply is a string: code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest, blocker of each limit.
-- Codes: 1 admitted, 2 appended, 4 repeated, 16 empty log; or the short forms 32 (denied, all used: time, newest, oldest)
-- and 33 (appended: time, used, oldest).
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key, request, given = KEYS[1], ARGV[1], ARGV[2]
local now
if given and given ~= '' then
  now = given + 0
else
  given = nil
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
local newest = call('ZRANGE', key, '0', '0', 'REV')[1]

-- The common operations: no callers' ids or denied attempts to be seen. They must be cheap: one call more shows, a number
-- made into text shows. One that appends leaves its reply and what `append.lua` needs; whatever is not common falls
-- through to the general form.
local t, last, high, low, cost = now, 0, 0, 0
local longest, expired, reply

-- One limit.
if #request == 30 and not ARGV[3] then
  local kind, window, max
  kind, cost, window, max = unpack_struct('>BI7I7I7', request)
  local used, rest, oldest, common = 0, 0, now, true
  if newest then
    local length, mark, tag = #newest
    if length == 26 or length == 33 then mark, last, high, low, tag = unpack_struct('>BI7I3I6B', newest) end
    common = mark == 128 and tag == (length == 26 and 0 or 4) and last < 9007199254740992
    if last > t then t = last end
    oldest = t
    if common and t - last < window then
      -- The first that counts is one of the first two, or mostly among the next few. Where the limit is used up for the
      -- first time, the first is enough.
      local batch, i, skipped, at, h, l = call('ZRANGE', key, '0', low == max and high == 0 and '0' or '1'), 1, 0
      while true do
        local first = batch[i]
        if not first then
          if skipped == 0 then
            skipped = #batch
            batch = call('ZRANGE', key, skipped == 1 and '1' or '2', '5')
          else
            batch = call('ZRANGEBYLEX', key, '[\128' .. pack('>I7', t - window + 1), '+', 'LIMIT', '0', '1')
            skipped = call('ZRANK', key, batch[1])
          end
          first, i = batch[1], 1
        end
        length = #first
        if length ~= 26 and length ~= 33 then common = false break end
        mark, at, h, l, tag = unpack_struct('>BI7I3I6B', first)
        if mark ~= 128 then common = false break end
        if t - at < window then
          common = tag == (length == 26 and 0 or 4)
          oldest = at
          rest = (high - h) * 281474976710656 + low - l
          used = rest + (length == 26 and 1 or unpack_struct('>I7', first, 27))
          if skipped + i > 1 then expired = skipped + i - 2 end
          break
        end
        i = i + 1
      end
    elseif common then
      -- All have expired; a running total starts anew.
      expired, high, low = -2, 0, 0
    end
  end
  if common and used + cost <= max then
    if kind == 4 then
      return pack('>BI7I7I7I7I7I7', newest and 1 or 17, t, last, 0, used, oldest, 0)
    elseif low + cost < 281474976710656 then
      longest, reply = window, pack('>BI7I7I7', 33, t, used + cost, oldest)
    end
  elseif common and used <= max and rest + cost <= max and (kind == 1 or kind == 4) then
    -- What blocks is the first that counts.
    if used == max then return pack('>BI7I7I7', 32, t, last, oldest) end
    return pack('>BI7I7I7I7I7I7', 0, t, last, 0, used, oldest, oldest)
  end
end
