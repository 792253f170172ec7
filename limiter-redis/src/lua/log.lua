-- A log on the general path, after entry.lua.

-- The flags of an entry, and whether a flag is set.
local function flags_of(member)
  if byte(member, 8) >= LONG_BYTE then return byte(member, LONG_FLAGS_PLACE) end
  local flags = byte(member, SHORT_FLAGS_PLACE)
  return flags - flags % FINAL
end
local function has(flags, flag) return flags % (2 * flag) >= flag end

-- The id of an entry: a caller's 16 bytes, or the store's 6. A merged one has none.
local function id_of(member)
  if byte(member, 8) < LONG_BYTE then
    local third = string.char(byte(member, SHORT_FLAGS_PLACE) % FINAL)
    return sub(member, SHORT_FLAGS_PLACE - 2, SHORT_FLAGS_PLACE - 1) .. third .. sub(member, SHORT_FLAGS_PLACE + 1, SHORT_LEN)
  end
  if byte(member, LONG_FLAGS_PLACE) == MERGED then return '' end
  if #member >= LONG_CALLER_LEN then return sub(member, LONG_FLAGS_PLACE + 3, LONG_CALLER_LEN) end
  return sub(member, LONG_FLAGS_PLACE + 1, LONG_LEN)
end

-- The least member that an entry of this time can be.
local function from_time(at) return pack('>i7', math.max(at, 0) - TIME_BIAS) end

-- The oldest entries between two bounds, which are '[' or '(' and a member, or '+'.
local function range(log, from, to, most) return call('ZRANGEBYLEX', log.key, from, to, 'LIMIT', '0', most) end

-- Reads a log: its time `t`, which is not before the newest entry's; that entry's time (nil if there is none) and running total; and
-- if that entry is short, the time of the first entry and the sum of all costs.
local function open(key, newest)
  if not newest then return { key = key, t = now, total = 0 } end
  local last, total = read(newest)
  local first, sum
  if total < SHORT_TOTAL_END and byte(newest, 8) < LONG_BYTE then
    first, sum = parse('>I6I2', newest, SHORT_AGE_PLACE)
    first = last - first
  end
  return { key = key, newest = newest, t = math.max(now, last), last = last, total = total, first = first, sum = sum, head = nil }
end

-- The two oldest entries, which answer most questions.
local function head(log)
  if not log.head then log.head = range(log, '[\224', '+', '2') end
  return log.head
end

-- What counts in a window: the sum, the time of the first entry that counts, the sum after that one (nil if none counts), and the
-- entry. If all entries count and the sum is at most `enough`, the sum after the first is an upper bound, and the entry is nil.
local function count_in(log, window, enough)
  local t = log.t
  if not log.newest or t - log.last >= window then return 0, t end
  if log.sum and log.sum <= enough and log.sum < SUM_MAX and t - log.first < window then return log.sum, log.first, log.sum - 1 end
  local members = head(log)
  local first = members[1]
  local at, total, cost = read(first)
  if t - at >= window then
    first = members[2]
    at, total, cost = read(first)
  end
  if t - at >= window then
    first = range(log, '[' .. from_time(t - window + 1), '+', '1')[1]
    at, total, cost = read(first)
  end
  -- Running totals fall to 0 at TOTAL_END.
  local rest = (log.total - total) % TOTAL_END
  return rest + cost, at, rest, first
end

-- The limits between two places of a request, with what counts in each for an operation of this cost; that with the longest window; and the
-- largest maximum, which is the most that a log holds.
local function limits_in(log, request, from, past, cost)
  local limits, longest, cap = {}, nil, 0
  for place = from, past, LIMIT_LEN do
    local window, max = parse('>I7I7', request, place)
    local used, oldest, rest, first = count_in(log, window, max - cost + 1)
    local limit = { window = window, max = max, used = used, oldest = oldest, rest = rest, first = first }
    limits[#limits + 1] = limit
    if not longest or window > longest.window then longest = limit end
    if max > cap then cap = max end
  end
  return limits, longest, cap
end

-- A running total and its lap, moved by this many units.
local function shifted(total, lap, by)
  if by > 0 and total >= TOTAL_END - by then
    total, lap = total - (TOTAL_END - by), lap + 1
  elseif total + by < 0 then
    total, lap = total + by + TOTAL_END, lap - 1
  else
    total = total + by
  end
  if lap < LONG_BIT or lap >= LAP_END then error('OVERFLOW more units at one time than a log can count', 0) end
  return total, lap
end

-- The first entry from a time on after which less than `bound` was appended: its time, the sum from it on, and the entry.
local function find(log, from, bound)
  local function first_of(members)
    for _, member in ipairs(members) do
      local at, total, cost = read(member)
      local rest = (log.total - total) % TOTAL_END
      if at >= from and rest < bound then return at, rest + cost, member end
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
    if (log.total - total) % TOTAL_END < bound then found, past = member, middle - 1 else first = middle + 1 end
  end
  if found then return first_of({ found }) end
end

-- The entry of this time with an id, which is `id` or `own_id`. Of many entries, `few` reads a batch only, and takes for granted
-- that it is among the others.
local function find_entry(log, at, id, own_id, few)
  local from, past = '[' .. from_time(at), '(' .. from_time(at) .. '\255'
  repeat
    local members = range(log, from, past, BATCH)
    for _, member in ipairs(members) do
      local found = id_of(member)
      if found == id or found == own_id then return member end
    end
    if few and #members == BATCH then return members[1] end
    from = '(' .. (members[#members] or '')
  until #members < BATCH
end
