-- A log on the general path, after entry.lua.

-- The flags of an entry, and whether a flag is set.
local function flags_of(member)
  if byte(member, 8) >= LONG_BYTE then return byte(member, LONG_FLAGS_PLACE) end
  local flags = byte(member, SHORT_FLAGS_PLACE)
  return flags - flags % FINAL
end
local function has(flags, flag) return flags % (2 * flag) >= flag end

-- The number of laps of a running total; see README.md.
local function lap_of(member) return byte(member, 8) >= LONG_BYTE and parse('>I2', member, 8) or LAP_START end

-- The id of an entry: a caller's 16 bytes, or the store's 6. A merged one has none.
local function id_of(member)
  if byte(member, 8) < LONG_BYTE then
    local third = string.char(byte(member, SHORT_FLAGS_PLACE) % FINAL)
    return sub(member, SHORT_FLAGS_PLACE - 2, SHORT_FLAGS_PLACE - 1) .. third .. sub(member, SHORT_FLAGS_PLACE + 1, SHORT_LEN)
  end
  if flags_of(member) == MERGED then return '' end
  return sub(member, LONG_FLAGS_PLACE + 1, #member > LONG_COST_LEN and LONG_CALLER_LEN or LONG_LEN)
end

-- The ttl code by which an entry has set the key's expiry; 0 if it has not.
local function ttl_of(member)
  local id = id_of(member)
  return #id == OWN_ID_LEN and not has(flags_of(member), NO_EXPIRY) and parse('>I2', id) or 0
end

-- The least member that an entry of this time can be.
local function from_time(at) return pack('>i7', math.max(at, 0) - TIME_BIAS) end

-- The first members of a range by bytes, from the oldest on. A bound is '[' or '(' and a member, or '+'.
local function range(log, from, to, most) return call('ZRANGEBYLEX', log.key, from, to, 'LIMIT', '0', most) end

-- The same from the newest on.
local function range_back(log, from, to, most) return call('ZREVRANGEBYLEX', log.key, to, from, 'LIMIT', '0', most) end

-- Reads a log: its time, which is not before the newest entry's, that entry's time (nil if there is none) and running total.
local function open(key, newest)
  local log = { key = key, newest = newest, t = now, total = 0 }
  if newest then
    log.last, log.total = read(newest)
    if log.last > now then log.t = log.last end
  end
  return log
end

-- The two oldest entries, which answer most questions.
local function head(log)
  if not log.head then log.head = range(log, '[\224', '+', '2') end
  return log.head
end

-- The sum of the costs appended after an entry with this running total.
local function after(log, total) return (log.total - total) % TOTAL_END end

-- What counts in a window: the sum, the time of the first entry that counts, the sum after that one (nil if none counts), and the
-- entry.
local function count_in(log, window)
  local t = log.t
  if not log.newest or t - log.last >= window then return 0, t end
  for _, member in ipairs(head(log)) do
    local at, total, cost = read(member)
    if t - at < window then return after(log, total) + cost, at, after(log, total), member end
  end
  local first = range(log, '[' .. from_time(t - window + 1), '+', '1')[1]
  local at, total, cost = read(first)
  return after(log, total) + cost, at, after(log, total), first
end

-- The first entry from a time on after which less than `bound` was appended: its time, the sum from it on, and the entry.
local function find(log, from, bound)
  local function first_of(members)
    for _, member in ipairs(members) do
      local at, total, cost = read(member)
      if at >= from and after(log, total) < bound then return at, after(log, total) + cost, member end
    end
  end
  if bound <= 0 then return end
  local at, sum, found = first_of(head(log))
  if found then return at, sum, found end
  local start = from_time(from)
  local members = range(log, '[' .. start, '+', FIND_BATCH)
  at, sum, found = first_of(members)
  if found or #members < FIND_BATCH then return at, sum, found end
  local first, past = call('ZLEXCOUNT', log.key, '-', '(' .. start) + FIND_BATCH, call('ZCARD', log.key) - 1
  while first <= past do
    local middle = math.floor((first + past) / 2)
    local member = call('ZRANGE', log.key, middle, middle)[1]
    local _, total = read(member)
    if after(log, total) < bound then found, past = member, middle - 1 else first = middle + 1 end
  end
  if found then return first_of({ found }) end
end

-- The entry of this time with an id, which is `id` or `own_id`. Of many entries, `few` reads a batch only, and takes for granted
-- that it is among the others.
local function find_entry(log, at, id, own_id, few)
  local from, past = '[' .. from_time(at), '(' .. from_time(at) .. '\255'
  repeat
    local members = range(log, from, past, BATCH)
    for i = 1, #members do
      local found = id_of(members[i])
      if found == id or found == own_id then return members[i] end
    end
    if few and #members == BATCH then return members[1] end
    from = '(' .. (members[#members] or '')
  until #members < BATCH
end
