-- Decides on an operation, and appends its entry. The script is this file, prelude.lua and apply.lua. format.rs has the
-- numbers behind the names that begin with a dollar sign.
--
-- ARGV[1], the request in bytes:
--   kind (1), plus RETENTION if a retention follows the id
--   cost (7)
--   id (a caller's 16, or the store's 6, which begin with a ttl code: see prelude.lua)
--   retention, if it differs from that of the limits: window (7), and the most that may be newer than a kept entry (7)
--   each limit: window (7), maximum (7)
-- ARGV[2]: the given time, or '' or nothing. ARGV[3]: microseconds since the first attempt, if this is a repetition.
--
-- Returns a string: a code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest and blocker of each limit.
-- The code is a sum of ADMITTED, APPENDED, REPEATED, EMPTY and SHORT. A SHORT reply, that of the fast path, has no entry, and
-- for each limit what was used before the operation and the oldest, which is also the blocker. The last limit comes first,
-- then the retention as if it were a limit, then the others.
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

-- The fast path: common operations on a log whose newest entry is short (see prelude.lua) and therefore describes the whole
-- log. Every command, table, function or number converted to text shows in the server's time, so there are few of them here.
-- All else falls through to the general form in apply.lua.
-- What precedes the limits takes as much as a limit, unless there is a caller's id.
local t, last, total, first, sum, last_ttl = now, 0, 0, now, 0
local common = #request % 14 == 0 and not ARGV[3]
if newest and common then
  common = #newest == 26 or #newest == 33
  if common then
    local age
    last, total, age, sum, last_ttl = unpack_struct('>i7I5I6I2I2', newest)
    last = last + 9007199254740992
    common = last >= 0 and last < 9007199254740992 and total < 549755813888
    if last > t then t = last end
    first = last - age
  end
end
if common then
  local kind, cost, ttl, id, window, max = unpack_struct('>BI7I2c4I7I7', request)
  local retention = kind > 8
  if retention then kind = kind - 8 end
  local fits, facts, longest, used, oldest, counts, from, second = true, '', 0
  for i = 14 + 1, #request, 14 do
    if i > 14 + 1 then
      facts = facts .. pack('>I7I7', used, oldest)
      window, max = unpack_struct('>I7I7', request, i)
    end
    local rest
    if not newest or t - last >= window then
      used, rest, oldest = 0, -1, t
    elseif t - first < window and sum < 65535 and sum + cost <= max + 1 then
      -- At most this was appended after the first.
      used, rest, oldest = sum, sum - 1, first
    else
      -- The first entry that counts: the first of all, or the second where one window alone decides. A full log keeps the
      -- second.
      local rank = t - first < window and (sum == 65535 or not retention) and '0'
        or (#request == 2 * 14 or retention) and '1'
      repeat
        local member
        if rank then
          member = call('ZRANGE', key, rank, rank)[1]
        else
          member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - (9007199254740992 - 1)), '+', 'LIMIT', '0', '1')[1]
        end
        local length, before = #(member or '')
        common = length == 26 or length == 33
        if not common then break end
        oldest, before = unpack_struct('>i7I5', member)
        oldest, rest = oldest + 9007199254740992, total - before
        common = before < 549755813888 and oldest <= t
        used = rest + (length == 26 and 1 or unpack_struct('>I7', member, 26 + 1))
        if i == 14 + 1 then second = rank == '1' end
        rank = nil
      until t - oldest < window
      if not common then break end
    end
    if retention then
      -- The second is the first to keep if it may stay and the first may not. Dropping more takes a search.
      if rest + cost > max or second and t - first < window and used + cost <= max then common = false break end
      retention = false
    elseif used + cost > max then
      fits = false
      -- The blocker is the first that counts; otherwise it takes a search.
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
    local code = append and 32 + 1 + 2 or fits and 32 + 1 or 32
    if not newest then code = code + 16 end
    local reply = pack('>BI7I7I7I7', code, t, last, used, oldest) .. facts
    if not append then return reply end
    if counts == 0 then total = 0 end
    counts = counts + cost
    if counts > 65535 then counts = 65535 end
    local entry = pack('>i7I5I6I2I2c4', t - 9007199254740992, total + cost, t - from, counts, ttl, id)
    if cost ~= 1 then entry = entry .. pack('>I7', cost) end
    -- Redis checks its memory limit before the first write only, so the append comes first.
    call('ZADD', key, '0', entry)
    if second then
      call('ZREMRANGEBYRANK', key, '0', '0')
    elseif from > first then
      call('ZREMRANGEBYLEX', key, '[\224', '(' .. pack('>i7', from - 9007199254740992))
    end
    if given then
      call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
    else
      -- `expiry` of prelude.lua, inlined.
      local cell = 2 ^ ((ttl - ttl % 64) / 64)
      if ttl ~= last_ttl or last - last % cell < t - t % cell then
        call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % 64 + 1) * cell) / 1000) + 1)
      end
    end
    return reply
  end
end
