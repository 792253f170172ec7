-- What the scripts know of entries. One sorted set per log; all scores are 0, so that members sort by their bytes:
--   128 | time (7 bytes) | running total (3 high, 6 low) | tag | id (8 bytes, or 16 if the caller chose it) |
--   cost (7 bytes, unless 1)
-- An id of 8 begins with two bytes that say how long the key is kept, see `expiry`, or are 0. The tag's bits are 1 denied,
-- 2 caller's id, 4 cost given, 8 the log had callers' ids when the entry was appended.
-- A caller's id is found by the member "i" | id | time of its entry; these sort before the entries.
local byte = string.byte

local function damaged(member)
  -- An error is a line of text to the client.
  local shown = sub(member, 1, 40):gsub('[^ -~]', function(char) return string.format('\\x%02x', byte(char)) end)
  error('DAMAGED not an entry of a log: "' .. shown .. '"', 0)
end

-- The time, running total (high, low), cost and tag of an entry. Refuses what no limiter wrote.
local function read(member)
  if #member >= 26 and byte(member) == 128 then
    local at, high, low, tag = unpack_struct('>I7I3I6B', member, 2)
    if at < 9007199254740992 and tag < 16 then
      local length = tag % 4 < 2 and 26 or 34
      if tag % 8 < 4 and #member == length then return at, high, low, 1, tag end
      if tag % 8 >= 4 and #member == length + 7 then
        return at, high, low, (unpack_struct('>I7', member, length + 1)), tag
      end
    end
  end
  return damaged(member)
end

-- Until when a key is kept whose newest entry is of this time, in milliseconds. `keep` is the longest window of the
-- append: 64 k + n is n cells of 2^k microseconds. All times of a cell have the same, so that most appends need not set
-- it; it is later than the time and the window by two cells at most.
local function expiry(at, keep)
  local cell = 2 ^ ((keep - keep % 64) / 64)
  return math.floor((at - at % cell + (keep % 64 + 1) * cell) / 1000) + 1
end

-- What an entry says about how long the key is kept; 0 if nothing.
local function keep_of(member, tag) return tag % 4 < 2 and unpack_struct('>I2', member, 19) or 0 end

-- An entry's id.
local function id_of(member, tag) return sub(member, 19, tag % 4 < 2 and 26 or 34) end

-- The first member that an entry of this time can be.
local function from_time(at) return '\128' .. pack('>I7', at > 0 and at or 0) end

-- How many ids there are: the rank of the oldest entry.
local function count_ids() return call('ZLEXCOUNT', key, '-', '(\128') end

-- Removes the entries of these ranks, and their ids.
local function drop(first, last)
  if last < first then return end
  local ids = {}
  if first > 0 then
    for from = first, last, 64 do
      for _, member in ipairs(call('ZRANGE', key, from, math.min(from + 63, last))) do
        if (byte(member, 18) or 0) % 4 >= 2 then
          ids[#ids + 1] = 'i' .. sub(member, 19, 34) .. sub(member, 2, 8)
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
  if high < 0 or high >= 16777216 then error('DAMAGED the running total has overflowed', 0) end
  return high, low
end
