-- ARGV: the request in bytes (kind: 1 acquire, 2 attempt, 3 record, 4 peek; then 7 each: cost, then window and maximum of
-- each limit; then the id, 8 bytes or a caller's 16); the given time, or '' or nothing; microseconds since the first
-- sending, if this is a repetition.
-- The reply is a string: code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest, blocker of each limit.
-- Codes: 1 admitted, 2 appended, 4 repeated, 16 empty log; or the short forms 32 (denied, all used: time, newest, oldest)
-- and 33 (appended: time, used, oldest).
local call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
local key, request, given = KEYS[1], ARGV[1], ARGV[2]
local now
if given and given ~= '' then
  now = given + 0
else
  given = nil
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
local newest = call('ZRANGE', key, '-1', '-1')[1]

-- The common operation: one limit, and only entries of cost 1 without callers' ids to be seen. It must be cheap: one
-- call more shows, a number made into text shows. Whatever is not common falls through to the general form.
if #request == 30 and not ARGV[3] then
  local kind, cost, window, max = unpack_struct('>BI7I7I7', request)
  local t, last, high, low, used, oldest, expired, common = now, 0, 0, 0, 0, now, nil, true
  if newest then
    local mark, tag
    if #newest == 26 then mark, last, high, low, tag = unpack_struct('>BI7I3I6B', newest) end
    common = mark == 128 and tag == 0 and last < 9007199254740992
    if last > t then t = last end
    oldest = t
    if common and t - last < window then
      local first = call('ZRANGE', key, '0', '0')[1]
      local at, h, l
      if first == newest then
        at, h, l = last, high, low
      elseif #first == 26 then
        mark, at, h, l, tag = unpack_struct('>BI7I3I6B', first)
      else
        mark = 0
      end
      if mark == 128 and t - at >= window then
        -- It has expired. The first that counts is mostly among the next few.
        mark = 0
        local next = call('ZRANGE', key, '1', '4')
        for i = 1, #next do
          if #next[i] ~= 26 then break end
          mark, at, h, l, tag = unpack_struct('>BI7I3I6B', next[i])
          if t - at < window then
            expired = i - 1
            break
          end
          mark = 0
        end
        if not expired and #next == 4 then
          local found = call('ZRANGEBYLEX', key, '[\128' .. pack('>I7', t - window + 1), '+', 'LIMIT', '0', '1')[1]
          if #found == 26 then
            mark, at, h, l, tag = unpack_struct('>BI7I3I6B', found)
            expired = call('ZRANK', key, found) - 1
          end
        end
      end
      common = mark == 128 and tag == 0
      if common then
        oldest = at
        used = (high - h) * 281474976710656 + low - l + 1
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
      local entry
      if cost == 1 then
        entry = pack('>BI7I3I6B', 128, t, high, low + 1, 0) .. string.sub(request, 23)
      else
        entry = pack('>BI7I3I6B', 128, t, high, low + cost, 4) .. string.sub(request, 23) .. pack('>I7', cost)
      end
      -- The first write must be one that a full server refuses.
      call('ZADD', key, '0', entry)
      if expired then call('ZREMRANGEBYRANK', key, '0', expired == 0 and '0' or expired) end
      if given then
        call('PEXPIRE', key, math.ceil((t - now + window) / 1000) + 60000)
      else
        local ends = t + window + 1000
        local part = ends % 1000000
        call('PEXPIREAT', key, string.format('%d%03d', (ends - part) / 1000000, part / 1000))
      end
      return pack('>BI7I7I7', 33, t, used + cost, oldest)
    end
  elseif common and used == max and cost == 1 and (kind == 1 or kind == 4) then
    return pack('>BI7I7I7', 32, t, last, oldest)
  end
end
