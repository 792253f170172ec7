-- ARGV: id (16 bytes), its entry's time, the receipt's window, new cost, given time or ''.
local id, at, cost = ARGV[1], ARGV[2] + 0, ARGV[4] + 0
local newest = call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
if not newest[1] then return 0 end
local last = tonumber(newest[2])
if last < 0 then return 0 end
cost_of(newest[1], last)
local t
if ARGV[5] == '' then
  local time = call('TIME')
  t = time[1] * 1000000 + time[2]
else
  t = ARGV[5] + 0
end
if last > t then t = last end
if t - at >= ARGV[3] + 0 then return 0 end

-- The entry: a caller's id, or the store's own where the high half is zero.
local own = sub(id, 1, 8) == '\0\0\0\0\0\0\0\0' and sub(id, 9, 16)
local target
local from = 0
repeat
  local batch = call('ZRANGEBYSCORE', key, ARGV[2], ARGV[2], 'LIMIT', from, '64')
  for i = 1, #batch do
    cost_of(batch[i], at)
    local chosen = byte(batch[i], 10) % 4 >= 2
    if chosen and sub(batch[i], 11, 26) == id or not chosen and sub(batch[i], 11, 18) == own then target = batch[i] end
  end
  from = from + 64
until target or #batch < 64
if not target then return 0 end
local delta = cost - cost_of(target, at)
if delta == 0 then return 1 end

-- The entry and all newer ones, with their running totals moved. Everything is read before anything is written.
local rank = call('ZRANK', key, target)
local size = call('ZCARD', key)
local carry = math.floor(math.abs(delta) / 281474976710656) * (delta < 0 and -1 or 1)
local rest = delta - carry * 281474976710656
local old, new, scores = {}, {}, {}
for first = rank, size - 1, 512 do
  local batch = call('ZRANGE', key, first, first + 511, 'WITHSCORES')
  for i = 1, #batch, 2 do
    cost_of(batch[i], tonumber(batch[i + 1]))
    local high, low = unpack_struct('>I3I6', batch[i])
    high, low = high + carry, low + rest
    if low < 0 then high, low = high - 1, low + 281474976710656 end
    if low >= 281474976710656 then high, low = high + 1, low - 281474976710656 end
    if high < 0 or high >= 16777216 then error('DAMAGED the running total has overflowed', 0) end
    old[#old + 1], new[#new + 1], scores[#scores + 1] = batch[i], pack('>I3I6', high, low) .. sub(batch[i], 10), batch[i + 1]
  end
end
local tag = byte(target, 10) % 4
local name = sub(target, 11, tag < 2 and 18 or 26)
new[1] = sub(new[1], 1, 9) .. string.char(tag + (cost > 1 and 4 or 0)) .. name
if cost > 1 then new[1] = new[1] .. pack('>I7', cost) end

-- The first of the older entries that are within reach of some limit.
local indexed = call('ZCOUNT', key, '-inf', '(0')
local keep = indexed
if delta > 0 then
  local high, low = unpack_struct('>I3I6', new[#new])
  local function after(entry, shift)
    local h, l = unpack_struct('>I3I6', entry)
    return (high - h) * 281474976710656 + low - l
  end
  local first, past = indexed, rank
  while first < past do
    local middle = math.floor((first + past) / 2)
    local entry = call('ZRANGE', key, middle, middle, 'WITHSCORES')
    cost_of(entry[1], tonumber(entry[2]))
    if after(entry[1]) < 4503599627370496 then past = middle else first = middle + 1 end
  end
  keep = first
  -- If the entry itself and newer ones reach that far, the first of those to keep is among them.
  while keep - rank + 1 < #new and keep >= rank and after(new[keep - rank + 1]) >= 4503599627370496 do keep = keep + 1 end
end

-- A running total never stands alone in the key: added before the old one is removed, so that the key keeps its TTL.
for first = cost == 0 and 2 or 1, #new, 16 do
  local add, remove = { key }, { key }
  for i = first, math.min(first + 15, #new) do
    add[#add + 1], add[#add + 2] = scores[i], new[i]
    remove[#remove + 1] = old[i]
  end
  call('ZADD', unpack(add))
  call('ZREM', unpack(remove))
end
if cost == 0 then
  call('ZREM', key, target)
  if tag >= 2 then call('ZREM', key, 'i' .. name) end
end
if keep > indexed then
  local ids = {}
  for i = indexed, keep - 1 do
    local entry = call('ZRANGE', key, i, i)[1]
    if (byte(entry, 10) or 0) % 4 >= 2 then ids[#ids + 1] = 'i' .. sub(entry, 11, 26) end
  end
  call('ZREMRANGEBYRANK', key, indexed, keep - 1)
  for i = 1, #ids do call('ZREM', key, ids[i]) end
end
return 1
