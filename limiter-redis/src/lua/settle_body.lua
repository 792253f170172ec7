
local id = sub(ARGV[1], 1, 16)
local at, window, cost = unpack_struct('>I7I7I7', ARGV[1], 17)
local newest = call('ZRANGE', key, '-1', '-1')[1]
if not newest then return 0 end
local last, top_high, top_low = read(newest)
local t = ARGV[2] and ARGV[2] + 0
if not t then
  t = call('TIME')
  t = t[1] * 1000000 + t[2]
end
if last > t then t = last end
if t - at >= window then return 0 end

-- The entry: a caller's id, or the store's own behind zeros.
local own = sub(id, 1, 10) == string.rep('\0', 10) and sub(id, 11, 16)
local target, tag, delta
local from, past, skip = '[' .. from_time(at), '(' .. past_time(at), 0
repeat
  local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '64')
  for i = 1, #batch do
    local _, _, _, before, mark = read(batch[i])
    local name = id_of(batch[i], mark)
    if name == (mark % 4 < 2 and own or id) then target, tag, delta = batch[i], mark, cost - before end
  end
  skip = skip + 64
until target or #batch < 64
if not target then return 0 end
if delta == 0 then return 1 end

-- What an entry becomes: a long one, since what a short one says of the log no longer holds; its running total moved.
local function moved(member, by)
  local time, high, low, own, mark = read(member)
  high, low = carry(high, low + by)
  return long(time, high, low, mark, id_of(member, mark) .. (own > 1 and pack('>I7', own) or ''))
end

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

-- No limit reaches further back than the newest entries that hold 2^52.
local ids = count_ids()
local first = ids
if delta > 0 then
  top_high, top_low = carry(top_high, top_low + delta)
  local past = size - 1
  while first < past do
    local middle = math.floor((first + past) / 2)
    local _, high, low
    if middle < rank then
      _, high, low = read(call('ZRANGE', key, middle, middle)[1])
    else
      _, high, low = read(new[middle - rank + 1])
    end
    if (top_high - high) * 281474976710656 + top_low - low < 4503599627370496 then past = middle else first = middle + 1 end
  end
end

-- What the newest entry says is believed. If it goes, that is the one before it.
local kept
if cost == 0 and rank == size - 1 and rank > ids then
  local before = call('ZRANGE', key, rank - 1, rank - 1)[1]
  local time, _, _, _, mark = read(before)
  local keep = keep_of(before, mark)
  if keep > 0 then kept = expiry(time, keep) end
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
if kept then
  local now = call('TIME')
  if call('PTTL', key) < kept - now[1] * 1000 - now[2] / 1000 then call('PEXPIREAT', key, kept) end
end
drop(ids, first - 1)
return 1
