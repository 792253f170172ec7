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
-- What the scripts share: the format of entries, and what counts in a window. format.rs has the numbers behind the names that
-- begin with a dollar sign.
--
-- A log is one sorted set; all scores are 0, so that members sort by their bytes. A time is a signed number of 7 bytes:
-- microseconds less 2^53 (TIME_BIAS). An id is a caller's 16 bytes, or the store's 6, of which the first two are a ttl code
-- (see `expiry`) or 0. An entry has one of two forms:
--   short: time | running total (5 bytes, below 2^39) | age of the first entry (6) | sum (2) | id (6) | cost (7, unless 1)
--   long:  time | running total (3 high, the first bit set, 6 low) | tag | id (6 or 16) | cost (7, unless 1)
-- The running total includes the entry. A short entry describes the log when it was appended: how much older the first
-- entry was, and the sum of all costs, at most 65535 (SUM_MAX). The newest entry is short only if that still holds and the set
-- holds no caller's id. The bits of a tag: 1 denied, 2 caller's id, 4 cost follows, 8 the log held callers' ids at the append.
-- At the same time, short entries sort before long ones, so a short one is never appended after a long one.
-- A caller's id is found by the member "i" | id | time of its entry. These sort before all entries.
local call, pack, unpack_struct, sub, byte = redis.call, struct.pack, struct.unpack, string.sub, string.byte
local key = KEYS[1]

local function is_short(member) return byte(member, 8) < 128 end

-- The time, running total (high, low), cost and tag of an entry. Fails on a member that no limiter wrote.
local function read(member)
  local length = #member
  if length >= 23 then
    local at, high, low, tag = unpack_struct('>i7I3I6B', member)
    local past
    at, high = at + 9007199254740992, high - 8388608
    if high < 0 then
      high, low, tag, past = 0, unpack_struct('>I5', member, 8), length == 26 and 0 or 4, 26
    else
      past = tag % 4 < 2 and 23 or 33
    end
    if at >= 0 and at < 9007199254740992 and tag < 16 then
      if tag % 8 < 4 and length == past then return at, high, low, 1, tag end
      if tag % 8 >= 4 and length == past + 7 then
        return at, high, low, (unpack_struct('>I7', member, past + 1)), tag
      end
    end
  end
  error('DAMAGED a member of ' .. length .. ' bytes is no entry of a log', 0)
end

-- When a key expires whose newest entry is of this time, in milliseconds. The ttl code TTL_CELLS * k + n stands for n cells
-- of 2^k microseconds. All times in a cell share an expiry, so most appends need not set it. It is at most two cells late.
local function expiry(at, ttl)
  local cell = 2 ^ ((ttl - ttl % 64) / 64)
  return math.floor((at - at % cell + (ttl % 64 + 1) * cell) / 1000) + 1
end

-- The id of an entry.
local function id_of(member, tag)
  if is_short(member) then return sub(member, 21, 26) end
  return sub(member, 18, tag % 4 < 2 and 23 or 33)
end

-- The ttl code of an entry, 0 if it has none.
local function ttl_of(member, tag) return tag % 4 < 2 and unpack_struct('>I2', id_of(member, tag)) or 0 end

-- The least member that an entry of this time can be.
local function from_time(at) return pack('>i7', math.max(at, 0) - 9007199254740992) end

-- Sorts after all entries of this time.
local function past_time(at) return from_time(at) .. string.rep('\255', 10) end

-- A long entry; `rest` is its id and cost.
local function long(at, high, low, tag, rest)
  return pack('>i7I3I6B', at - 9007199254740992, high + 8388608, low, tag) .. rest
end

-- The number of callers' ids, which is also the rank of the oldest entry.
local function count_ids() return call('ZLEXCOUNT', key, '-', '(' .. from_time(0)) end

-- Removes the entries of these ranks, and their ids.
local function drop(first, last)
  if last < first then return end
  local ids = {}
  if first > 0 then
    for from = first, last, 64 do
      for _, member in ipairs(call('ZRANGE', key, from, math.min(from + 64 - 1, last))) do
        if (byte(member, 8) or 0) >= 128 and (byte(member, 17) or 0) % 4 >= 2 then
          ids[#ids + 1] = 'i' .. sub(member, 18, 33) .. sub(member, 1, 7)
        end
      end
    end
  end
  call('ZREMRANGEBYRANK', key, first == 0 and '0' or first, last == 0 and '0' or last)
  for i = 1, #ids do call('ZREM', key, ids[i]) end
end

-- Adds to a running total; `low` may be negative.
local function carry(high, low)
  local over = math.floor(low / 281474976710656)
  high, low = high + over, low - over * 281474976710656
  if high < 0 or high >= 8388608 then error('DAMAGED the running total has overflowed', 0) end
  return high, low
end

-- The log at the time `t`. Of the newest entry: its time (-1 if there is none), running total and tag. `head` is the two oldest
-- entries, unless callers' ids sort before them. They answer most questions.
local t, last, high, low, tag, head

-- Reads the log at a time, but not before its newest entry.
local function read_log(now, newest)
  t, last, high, low, tag, head = now, -1, 0, 0, 0, {}
  if not newest then return end
  local _
  last, high, low, _, tag = read(newest)
  if last > t then t = last end
  -- Members that no limiter wrote sort to the ends.
  local batch = call('ZRANGE', key, '0', tag < 8 and '1' or '0')
  if tag < 8 or #batch[1] ~= 24 or sub(batch[1], 1, 1) ~= 'i' then
    for i = 1, #batch do
      local at, h, l, cost = read(batch[i])
      head[i] = { at = at, high = h, low = l, cost = cost }
    end
  end
end

-- The sum of the costs appended after an entry with this running total.
local function after(h, l) return (high - h) * 281474976710656 + low - l end

-- The first entry from a time on after which less than `bound` was appended: its time, its rank, and the sum from it on.
local function find(from, bound)
  if bound <= 0 then return nil end
  for i = 1, #head do
    local entry = head[i]
    local rest = after(entry.high, entry.low)
    if entry.at >= from and rest < bound then return entry.at, i - 1, rest + entry.cost end
  end
  local start = from_time(from)
  local batch = call('ZRANGEBYLEX', key, '[' .. start, '+', 'LIMIT', '0', '8')
  local first = call('ZLEXCOUNT', key, '-', '(' .. start)
  for i = 1, #batch do
    local at, h, l, cost = read(batch[i])
    if after(h, l) < bound then return at, first + i - 1, after(h, l) + cost end
  end
  if #batch < 8 then return nil end
  first = first + 8
  local past = call('ZCARD', key) - 1
  local found, rank, sum
  while first <= past do
    local middle = math.floor((first + past) / 2)
    local at, h, l, cost = read(call('ZRANGE', key, middle, middle)[1])
    if after(h, l) < bound then
      found, rank, sum, past = at, middle, after(h, l) + cost, middle - 1
    else
      first = middle + 1
    end
  end
  return found, rank, sum
end

-- What counts in a window: its sum, the time of its first entry, the sum after that one (-1 if none counts), and its rank, if
-- known.
local function count(window)
  if last < 0 or t - last >= window then return 0, t, -1 end
  for i = 1, #head do
    local first = head[i]
    if t - first.at < window then
      local rest = after(first.high, first.low)
      return rest + first.cost, first.at, rest, i - 1
    end
  end
  local first = call('ZRANGEBYLEX', key, '[' .. from_time(t - window + 1), '+', 'LIMIT', '0', '1')[1]
  local oldest, h, l, cost = read(first)
  local rest = after(h, l)
  return rest + cost, oldest, rest
end

-- The time of the entry whose expiry frees a unit, once `more` is appended to what `count` found.
local function frees(window, max, used, oldest, rest, more)
  -- Mostly the first entry that counts.
  if used + more <= max or rest + more < max then return oldest end
  return find(t - window + 1, max - more) or t
end

-- The general form of an operation, after apply_fast.lua and prelude.lua. The former has read `request`, `given`, `now` and
-- `newest`.
read_log(now, newest)
local kind, cost = unpack_struct('>BI7', request)
local retention = kind > 8
if retention then kind = kind - 8 end
local windows = math.floor(#request / 14) - 1
local id = sub(request, 8 + 1, #request - 14 * windows)

-- What counts in each window. Of the longest, `behind` is the sum after the first entry that counts (-1 if none does), `origin`
-- the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a log holds.
local limits, fits, longest, cap, behind, origin, whole, expired = {}, true, 0, 0, -1
for i = 1, windows do
  local window, max = unpack_struct('>I7I7', request, 8 + 1 + #id + 14 * (i - 1))
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if retention and i == 1 then
    cap = max + 1
  else
    if used + cost > max then fits = false end
    if max > cap then cap = max end
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, blocker = oldest, rest = rest }
  end
end

-- The entry that an earlier attempt of this operation appended.
local admitted, at = fits, nil
if #id == 16 then
  local index = tag >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + 9007199254740992
  if appended and t - appended < longest then
    local from, past, skip = '[' .. from_time(appended), '(' .. past_time(appended), 0
    repeat
      local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '64')
      for i = 1, #batch do
        local _, _, _, _, entry_tag = read(batch[i])
        if entry_tag % 4 >= 2 and id_of(batch[i], entry_tag) == id then at, admitted = appended, entry_tag % 2 == 0 end
      end
      skip = skip + 64
    until at or #batch < 64
  end
elseif ARGV[3] and last >= 0 then
  local since = given and now or now - ARGV[3] - 1000000
  local from, skip = '[' .. from_time(since), 0
  repeat
    if skip >= 4096 then error('UNKNOWN too many newer entries to find that of the first attempt', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', from, 'LIMIT', skip, '64')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      if entry_tag % 4 < 2 and id_of(batch[i], entry_tag) == id then at, admitted = time, entry_tag % 2 == 0 end
    end
    skip = skip + 64
  until at or #batch < 64
end

local append = not at and (kind == 2 or kind == 3 or (fits and kind == 1))
local more = append and cost or 0
for i = 1, #limits do
  local limit = limits[i]
  local used, max, rest = limit.used, limit.max, limit.rest
  if fits and not at then
    -- The first entry that counts is the oldest, and nothing blocks.
    if append and used == 0 then limit.oldest = t end
  else
    limit.oldest = frees(limit.window, max, used, limit.oldest, rest, more)
    if used + more + cost > max and kind ~= 3 and rest + more > max - cost then
      limit.blocker = find(t - limit.window + 1, max - more - cost + 1) or t
    end
  end
  limit.used = used + more
end

if append then
  -- The rank of the first entry that the cap lets stay, nil if all may. Then the log begins there, or with the new entry.
  local kept
  if behind >= 0 and behind + cost >= cap then
    origin, kept, whole = find(t - longest + 1, cap - cost)
    if not kept then origin, kept, whole = t, -1, 0 end
  end
  if last < t and (behind < 0 or kept == -1) then high, low = 0, 0 end
  high, low = carry(high, low + cost)
  local ids = tag >= 8 and count_ids() or 0
  local entry
  if fits and #id == 6 and ids == 0 and high == 0 and low < 549755813888 and t - origin < 281474976710656
    and (last < t or is_short(newest)) then
    entry = pack('>i7I5I6I2', t - 9007199254740992, low, t - origin, math.min(whole + cost, 65535)) .. id
  else
    local entry_tag = (fits and 0 or 1) + (cost > 1 and 4 or 0) + (ids > 0 and 8 or 0)
    if #id == 16 then entry_tag, ids = entry_tag % 8 + 10, ids + 1 end
    entry = long(t, high, low, entry_tag, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  if #id == 16 then
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  else
    call('ZADD', key, '0', entry)
  end
  if newest then
    -- A new id moves all ranks up by one.
    local moved, first = #id == 16 and 1 or 0
    if kept == -1 then
      first = call('ZRANK', key, entry)
    else
      first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
      if kept then first = math.max(first, kept + moved) end
    end
    drop(ids, first - 1)
  end
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
  else
    -- A caller's id leaves no room for a ttl code.
    local ttl = #id == 6 and unpack_struct('>I2', id) or 0
    if ttl == 0 then
      call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
    elseif not newest or ttl_of(newest, tag) ~= ttl or expiry(last, ttl) ~= expiry(t, ttl) then
      call('PEXPIREAT', key, expiry(t, ttl))
    end
  end
  last = t
end

local code = (admitted and 1 or 0) + (append and 2 or at and 4 or 0) + (last < 0 and 16 or 0)
local reply = pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t)
for i = 1, #limits do
  local limit = limits[i]
  reply = reply .. pack('>I7I7I7', math.min(limit.used, 9007199254740992), limit.oldest, limit.blocker)
end
return reply
