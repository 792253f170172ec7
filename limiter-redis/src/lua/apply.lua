-- ARGV: the request in bytes (kind: 1 acquire, 2 attempt, 3 record, 4 peek; the cost, 7 bytes; the id, a caller's 16 bytes
-- or 6, of which the first two say how long the key is kept; window and maximum of each limit, 7 each); the given time, or
-- '' or nothing; microseconds since the first sending, if this is a repetition.
-- The reply is a string: code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest, blocker of each limit.
-- Codes: 1 admitted, 2 appended, 4 repeated, 16 empty log. With 32 it is shorter: no entry, and of each limit, the last one
-- before the others, what was used until then, and the oldest, which is what blocks, too.
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

-- The common operations, on a log whose newest entry is short (see entry.lua) and so tells of the first. They must be cheap:
-- one call more shows, a table or a number made into text shows. Whatever is not common falls through to the general form.
local t, last, total, first, sum, kept = now, 0, 0, now, 0
local common = #request % 14 == 0 and not ARGV[3]
if newest and common then
  common = #newest == 26 or #newest == 33
  if common then
    local age
    last, total, age, sum, kept = unpack_struct('>i7I5I6I2I2', newest)
    last = last + 9007199254740992
    common = last >= 0 and last < 9007199254740992 and total < 549755813888
    if last > t then t = last end
    first = last - age
  end
end
if common then
  local kind, cost, keep, id, window, max = unpack_struct('>BI7I2c4I7I7', request)
  local fits, facts, longest, used, oldest, counts, from, second = true, '', 0
  for i = 15, #request, 14 do
    if i > 15 then
      facts = facts .. pack('>I7I7', used, oldest)
      window, max = unpack_struct('>I7I7', request, i)
    end
    local rest
    if not newest or t - last >= window then
      used, rest, oldest = 0, 0, t
    elseif t - first < window and sum < 65535 and sum + cost <= max + 1 then
      -- So much at most was appended after the first.
      used, rest, oldest = sum, sum - 1, first
    else
      -- The first that counts is the first of all, or under one limit mostly the second.
      local rank = t - first < window and '0' or #request == 28 and '1'
      repeat
        local member
        if rank then
          member = call('ZRANGE', key, rank, rank)[1]
        else
          member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - 9007199254740991), '+', 'LIMIT', '0', '1')[1]
        end
        local length, before = #(member or '')
        common = length == 26 or length == 33
        if not common then break end
        oldest, before = unpack_struct('>i7I5', member)
        oldest, rest = oldest + 9007199254740992, total - before
        common = before < 549755813888 and oldest <= t
        used = rest + (length == 26 and 1 or unpack_struct('>I7', member, 27))
        second, rank = rank == '1', nil
      until t - oldest < window
      if not common then break end
    end
    if used + cost > max then
      fits = false
      -- What blocks is the first that counts, or it takes a search.
      if used > max or rest + cost > max then common = false break end
    end
    if window > longest then longest, counts, from = window, used, oldest end
  end
  local append = fits and kind ~= 4
  if append then
    common = common and total + cost < 549755813888 and t - from < 281474976710656
  else
    common = common and (kind == 1 or kind == 4)
  end
  if common then
    local code = (append and 35 or fits and 33 or 32) + (newest and 0 or 16)
    local reply = pack('>BI7I7I7I7', code, t, last, used, oldest) .. facts
    if not append then return reply end
    if counts == 0 then total = 0 end
    counts = counts + cost
    if counts > 65535 then counts = 65535 end
    local entry = pack('>i7I5I6I2I2c4', t - 9007199254740992, total + cost, t - from, counts, keep, id)
    if cost ~= 1 then entry = entry .. pack('>I7', cost) end
    -- The first write must be one that a full server refuses.
    call('ZADD', key, '0', entry)
    if second then
      call('ZREMRANGEBYRANK', key, '0', '0')
    elseif from > first then
      call('ZREMRANGEBYLEX', key, '[\224', '(' .. pack('>i7', from - 9007199254740992))
    end
    if given then
      call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
    else
      -- As `expiry` in entry.lua, which the common operations do without.
      local cell = 2 ^ ((keep - keep % 64) / 64)
      if keep ~= kept or last - last % cell < t - t % cell then
        call('PEXPIREAT', key, math.floor((t - t % cell + (keep % 64 + 1) * cell) / 1000) + 1)
      end
    end
    return reply
  end
end

