
-- Sets the cost of one entry, or removes the entry. The script is head.lua, prelude.lua and this file.
--
-- ARGV[1], the request in bytes: the entry's id (16), then 7 each: its time, the receipt's window, the new cost, and the window
-- and maximum of each limit to report.
--
-- Returns a string: a code (1 byte), the sum of APPLIED and EMPTY, then 7 bytes each: time, newest, and used and oldest of each
-- limit.

-- What an entry becomes when its running total moves: a long one, because what a short one says of the log no longer holds.
local function moved(member, by)
  local time, h, l, cost, entry_tag = read(member)
  h, l = carry(h, l + by)
  return long(time, h, l, entry_tag, id_of(member, entry_tag) .. (cost > 1 and pack('>I7', cost) or ''))
end

-- When the key must expire, if it may expire too early now.
local expires

-- Settles the entry. Returns whether the log held it.
local function settle()
  local id = sub(request, 1, $CALLER_ID_LEN)
  local at, window, cost = unpack_struct('>I7I7I7', request, $CALLER_ID_LEN + 1)
  local last
  last, high, low = read(newest)
  if last > now then now = last end
  if now - at >= window then return false end

  -- The entry has a caller's id, or the store's, which comes behind zeros. A merged one has the number 0, and no receipt.
  local zeros = string.rep('\0', $CALLER_ID_LEN - $OWN_ID_LEN)
  local own_id = sub(id, 1, #zeros) == zeros and sub(id, -4) ~= sub(zeros, 1, 4) and sub(id, -$OWN_ID_LEN)
  local target, tag, before = find_entry(at, id, own_id)
  if not target then return false end
  local delta = cost - before

  -- The entry and all newer ones, and what they become, unless nothing changes. Everything is read before anything is written.
  local rank, size = call('ZRANK', key, target), call('ZCARD', key)
  local old, new = {}, {}
  for first = delta == 0 and size or rank, size - 1, $READ_BATCH do
    local stop = first + $READ_BATCH < size and first + $READ_BATCH - 1 or '-1'
    for _, member in ipairs(call('ZRANGE', key, first, stop)) do
      old[#old + 1], new[#new + 1] = member, moved(member, delta)
    end
  end
  local name = id_of(target, tag)
  if delta ~= 0 then
    tag = tag - tag % 8 + tag % 4 + (cost > 1 and 4 or 0)
    new[1] = sub(new[1], 1, 16) .. string.char(tag) .. name .. (cost > 1 and pack('>I7', cost) or '')
  end

  -- No limit sees further back than the newest entries that hold 2^52. Mostly that is the whole log.
  local ids = count_ids()
  high, low = carry(high, low + delta)
  local function is_seen(place)
    local _, h, l = read(new[place - rank + 1] or call('ZRANGE', key, place, place)[1])
    return after(h, l) < $MAX_COST
  end
  local first = ids
  local past = is_seen(first) and first or size - 1
  while first < past do
    local middle = math.floor((first + past) / 2)
    if is_seen(middle) then past = middle else first = middle + 1 end
  end

  -- Appends trust the newest entry to describe the log and the key's expiry. If it goes, they trust the one before it.
  if cost == 0 and rank == size - 1 and rank > ids then
    local before = call('ZRANGE', key, rank - 1, rank - 1)[1]
    local time, _, _, _, entry_tag = read(before)
    local ttl = ttl_of(before, entry_tag)
    if ttl > 0 then expires = expiry(time, ttl) end
    if is_short(before) then old[2], new[2] = before, moved(before, 0) end
  end

  -- New members come before old ones go, so that the key is never empty and keeps its time to live.
  for from = cost == 0 and 2 or 1, #new, $REWRITE_BATCH do
    local add, remove = { key }, { key }
    for i = from, math.min(from + $REWRITE_BATCH - 1, #new) do
      add[#add + 1], add[#add + 2] = '0', new[i]
      remove[#remove + 1] = old[i]
    end
    call('ZADD', unpack(add))
    call('ZREM', unpack(remove))
  end
  drop(ids, first - 1)
  if cost == 0 then
    call('ZREM', key, target)
    if tag % 4 >= 2 and time_of_id(name) == at then call('ZREM', key, 'i' .. name) end
    -- Ids whose entries are gone are no log.
    if ids > 0 and size == ids + 1 then call('UNLINK', key) end
  end
  return true
end

local applied = newest and settle()
if applied then newest = call('ZRANGE', key, '0', '0', 'REV')[1] end
read_log(now, newest)

local reply = pack('>BI7I7', (applied and $APPLIED or 0) + (last < 0 and $EMPTY or 0), t, last < 0 and 0 or last)
for i = $SETTLE_HEAD_LEN + 1, #request, $LIMIT_LEN do
  local window, max = unpack_struct('>I7I7', request, i)
  local used, oldest, rest = count(window)
  oldest = frees(window, max, used, oldest, rest, 0)
  reply = reply .. pack('>I7I7', math.min(used, $USED_MAX), oldest)
end
-- Nothing is read afterwards: if the script takes long, the key is gone.
if expires then
  local clock = call('TIME')
  if call('PTTL', key) < expires - clock[1] * 1000 - clock[2] / 1000 then call('PEXPIREAT', key, expires) end
end
return reply
