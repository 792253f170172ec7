
-- Shared by the scripts, after head.lua: the format of entries, and the sums of windows.
--
-- A log is one sorted set. The scores of entries are 0, so that they sort by their bytes. A time is a signed number of 7 bytes:
-- microseconds less 2^53 (TIME_BIAS). An id is a caller's 16 bytes, or the store's 6: a ttl code (2; see `expiry`) or 0, and four
-- whose first two bits are those of a short entry that was denied, or is final. A final entry was admitted, but exceeded the limiter's
-- default policy, so it has no receipt. An entry has one of two forms:
--   short: time | running total (5 bytes, below 2^39) | age of the first entry (6) | sum (2) | id (6) | cost (7, unless 1)
--   long:  time | running total (3 high, the first bit set, 6 low) | tag | id (6 or 16) | cost (7, unless 1)
-- The running total includes the entry. In a log that is never empty it falls by FALL once it has reached FALL_FROM, each in units
-- of 2^48; a log holds less than that (see `after`). A short entry describes the log when it was appended: how much older the first
-- entry was, and the sum of all costs, at most 65535 (SUM_MAX). The newest entry is short only if that still holds and the set
-- holds no caller's id, and the entry has no marks. The bits of a tag: 1 denied, 2 caller's id, 4 cost follows, 8 the log held
-- callers' ids at the append; 64 final; and the marks (M1 of the contract): 16 if an entry was named in its cell of ten minutes, 32
-- if one was in the cell before.
-- At the same time, short entries sort before long ones, so a short one is never appended after a long one.
-- A caller's id is found by the member "i" | id, whose score is the time of its newest entry, less 2^53. These sort before all
-- entries, by time. They may stay in the set for a while after their entries; see `prune`. A search by bytes is for entries only.
local byte = string.byte

local function is_short(member) return byte(member, 8) < $LONG_BYTE end

-- The time, running total (high, low), cost and tag of an entry. Fails on a member that no limiter wrote.
local function read(member)
  local length = #member
  if length >= $LONG_LEN then
    local at, high, low, tag = unpack_struct('>i7I3I6B', member)
    local past
    at, high = at + $TIME_BIAS, high - $LONG_BIT
    if high < 0 then
      high, low, past = 0, unpack_struct('>I5', member, 8), $SHORT_LEN
      local third = byte(member, 23)
      tag = (length > $SHORT_LEN and 4 or 0) + (third >= $DENIED_BYTE and 1 or third >= $FINAL_BYTE and $FINAL or 0)
    else
      past = tag % 4 < 2 and $LONG_LEN or $LONG_CALLER_LEN
    end
    if at >= 0 and at < $TIME_END then
      if tag % 8 < 4 and length == past then return at, high, low, 1, tag end
      if tag % 8 >= 4 and length == past + 7 then
        return at, high, low, (unpack_struct('>I7', member, past + 1)), tag
      end
    end
  end
  error('DAMAGED a member of ' .. length .. ' bytes is no entry of a log', 0)
end

local function time_of(member) return unpack_struct('>i7', member) + $TIME_BIAS end

-- When a key expires whose newest entry is of this time, in milliseconds. The ttl code TTL_CELLS * k + n stands for n cells
-- of 2^k microseconds. All times in a cell share an expiry, so most appends need not set it. It is at most two cells late.
local function expiry(at, ttl)
  local cell = 2 ^ ((ttl - ttl % $TTL_CELLS) / $TTL_CELLS)
  return math.floor((at - at % cell + (ttl % $TTL_CELLS + 1) * cell) / 1000) + 1
end

-- The id of an entry, without the bits of a short one.
local function id_of(member, tag)
  if not is_short(member) then return sub(member, 18, tag % 4 < 2 and $LONG_LEN or $LONG_CALLER_LEN) end
  return sub(member, 21, 22) .. string.char(byte(member, 23) % $FINAL_BYTE) .. sub(member, 24, $SHORT_LEN)
end

-- The ttl code of an entry, 0 if it has none.
local function ttl_of(member, tag) return tag % 4 < 2 and unpack_struct('>I2', id_of(member, tag)) or 0 end

-- The least member that an entry of this time can be.
local function from_time(at) return pack('>i7', math.max(at, 0) - $TIME_BIAS) end

-- Sorts after all entries of this time.
local function past_time(at) return from_time(at) .. string.rep('\255', 10) end

-- The entry of this time with a caller's id, or with the store's id `own_id`: its member, tag and cost. Nil if there is none. Of many
-- entries, `few` reads a batch only, and takes for granted that it is among the others.
local function find_entry(at, id, own_id, few)
  local from, past, skip = '[' .. from_time(at), '(' .. past_time(at), 0
  repeat
    local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '$BATCH')
    for i = 1, #batch do
      local _, _, _, cost, tag = read(batch[i])
      if id_of(batch[i], tag) == (tag % 4 < 2 and own_id or id) then return batch[i], tag, cost end
    end
    if few and #batch == $BATCH then return batch[1] end
    skip = skip + $BATCH
  until #batch < $BATCH
end

-- A long entry; `rest` is its id and cost.
local function long(at, high, low, tag, rest)
  return pack('>i7I3I6B', at - $TIME_BIAS, high + $LONG_BIT, low, tag) .. rest
end

-- The number of callers' ids, which is also the rank of the oldest entry.
local function count_ids() return call('ZLEXCOUNT', key, '-', '(' .. from_time(0)) end

-- The time of the newest entry with a caller's id. Nil if the log holds none; that entry may be gone.
local function time_of_id(id)
  local score = call('ZSCORE', key, 'i' .. id)
  return score and score + $TIME_BIAS or nil
end

-- Removes the entries of these ranks.
local function drop(first, last)
  if last >= first then call('ZREMRANGEBYRANK', key, first == 0 and '0' or first, last == 0 and '0' or last) end
end

-- Adds to a running total; `low` may be negative.
local function carry(high, low)
  local over = math.floor(low / $LOW_END)
  high, low = high + over, low - over * $LOW_END
  if high < 0 or high >= $HIGH_END then error('OVERFLOW more units at one time than a log can count', 0) end
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
  local batch = call('ZRANGE', key, '0', tag % 16 < 8 and '1' or '0')
  if tag % 16 < 8 or #batch[1] ~= $ID_MEMBER_LEN or sub(batch[1], 1, 1) ~= 'i' then
    for i = 1, #batch do
      local at, h, l, cost = read(batch[i])
      head[i] = { at = at, high = h, low = l, cost = cost }
    end
  end
end

-- The sum of the costs appended after an entry with this running total.
local function after(h, l)
  local above = high - h
  if above < 0 then above = above + $FALL end
  return above * $LOW_END + low - l
end

-- The first entry from a time on after which less than `bound` was appended: its time, its rank, and the sum from it on.
local function find(from, bound)
  if bound <= 0 then return nil end
  for i = 1, #head do
    local entry = head[i]
    local rest = after(entry.high, entry.low)
    if entry.at >= from and rest < bound then return entry.at, i - 1, rest + entry.cost end
  end
  local start = from_time(from)
  local batch = call('ZRANGEBYLEX', key, '[' .. start, '+', 'LIMIT', '0', '$FIND_BATCH')
  local first = call('ZLEXCOUNT', key, '-', '(' .. start)
  for i = 1, #batch do
    local at, h, l, cost = read(batch[i])
    if after(h, l) < bound then return at, first + i - 1, after(h, l) + cost end
  end
  if #batch < $FIND_BATCH then return nil end
  first = first + $FIND_BATCH
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

-- The count of a window: its sum, the time of its first entry, the sum after that one (-1 if none counts), and its rank, if
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
