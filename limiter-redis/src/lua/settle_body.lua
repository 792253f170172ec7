
local newest = call('ZRANGE', key, '0', '0', 'REV')[1]

-- What an entry becomes when its running total moves: a long one, because what a short one says of the log no longer holds.
local function moved(member, by)
  local time, h, l, own, mark = read(member)
  h, l = carry(h, l + by)
  return long(time, h, l, mark, id_of(member, mark) .. (own > 1 and pack('>I7', own) or ''))
end

-- Settles the entry. Returns whether the log held it.
local function settle()
  local id = sub(request, 1, 16)
  local at, window, cost = unpack_struct('>I7I7I7', request, 17)
  local last, top_high, top_low = read(newest)
  if last > now then now = last end
  if now - at >= window then return false end

  -- The entry has a caller's id, or the store's, which comes behind zeros.
  local own = sub(id, 1, 10) == string.rep('\0', 10) and sub(id, 11, 16)
  local target, tag, delta
  local from, past, skip = '[' .. from_time(at), '(' .. past_time(at), 0
  repeat
    local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '64')
    for i = 1, #batch do
      local _, _, _, before, mark = read(batch[i])
      if id_of(batch[i], mark) == (mark % 4 < 2 and own or id) then target, tag, delta = batch[i], mark, cost - before end
    end
    skip = skip + 64
  until target or #batch < 64
  if not target then return false end
  if delta == 0 then return true end

  -- The entry and all newer ones, and what they become. Everything is read before anything is written.
  local rank, size = call('ZRANK', key, target), call('ZCARD', key)
  local old, new = {}, {}
  for first = rank, size - 1, 512 do
    for _, member in ipairs(call('ZRANGE', key, first, first + 511)) do
      old[#old + 1], new[#new + 1] = member, moved(member, delta)
    end
  end
  local name = id_of(target, tag)
  tag = tag % 4 + (tag >= 8 and 8 or 0) + (cost > 1 and 4 or 0)
  new[1] = sub(new[1], 1, 16) .. string.char(tag) .. name .. (cost > 1 and pack('>I7', cost) or '')

  -- No limit sees further back than the newest entries that hold 2^52. Mostly that is the whole log.
  local ids = count_ids()
  local first = ids
  if delta > 0 then
    top_high, top_low = carry(top_high, top_low + delta)
    local function is_seen(place)
      local member = place < rank and call('ZRANGE', key, place, place)[1] or new[place - rank + 1]
      local _, h, l = read(member)
      return (top_high - h) * 281474976710656 + top_low - l < 4503599627370496
    end
    local past = is_seen(first) and first or size - 1
    while first < past do
      local middle = math.floor((first + past) / 2)
      if is_seen(middle) then past = middle else first = middle + 1 end
    end
  end

  -- The newest entry is trusted to describe the log and to tell the key's expiry. If it goes, so is the one before it.
  local expires
  if cost == 0 and rank == size - 1 and rank > ids then
    local before = call('ZRANGE', key, rank - 1, rank - 1)[1]
    local time, _, _, _, mark = read(before)
    local ttl = ttl_of(before, mark)
    if ttl > 0 then expires = expiry(time, ttl) end
    if is_short(before) then old[2], new[2] = before, moved(before, 0) end
  end

  -- New members come before old ones go, so that the key is never empty and keeps its time to live.
  for from = cost == 0 and 2 or 1, #new, 16 do
    local add, remove = { key }, { key }
    for i = from, math.min(from + 15, #new) do
      add[#add + 1], add[#add + 2] = '0', new[i]
      remove[#remove + 1] = old[i]
    end
    call('ZADD', unpack(add))
    call('ZREM', unpack(remove))
  end
  if cost == 0 then
    call('ZREM', key, target)
    if tag % 4 >= 2 then call('ZREM', key, 'i' .. name .. sub(target, 1, 7)) end
  end
  if expires then
    local clock = call('TIME')
    if call('PTTL', key) < expires - clock[1] * 1000 - clock[2] / 1000 then call('PEXPIREAT', key, expires) end
  end
  drop(ids, first - 1)
  return true
end

local applied = newest and settle()
if applied then newest = call('ZRANGE', key, '0', '0', 'REV')[1] end
