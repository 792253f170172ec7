
-- What the log holds at `t`: at the time `now`, but not before its newest entry.
local t, last, high, low, tag, _ = now, -1, 0, 0, 0
-- The two oldest entries, unless callers' ids sort before them. They answer most questions.
local head = {}
if newest then
  last, high, low, _, tag = read(newest)
  if last > t then t = last end
  -- Members that no limiter wrote sort to the ends.
  local batch = call('ZRANGE', key, '0', tag < 8 and '1' or '0')
  if tag < 8 or #batch[1] ~= 24 or byte(batch[1]) ~= 105 then
    for i = 1, #batch do
      local at, h, l, own = read(batch[i])
      head[i] = { at = at, high = h, low = l, own = own }
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
    if entry.at >= from and rest < bound then return entry.at, i - 1, rest + entry.own end
  end
  local start = from_time(from)
  local batch = call('ZRANGEBYLEX', key, '[' .. start, '+', 'LIMIT', '0', '8')
  local first = call('ZLEXCOUNT', key, '-', '(' .. start)
  for i = 1, #batch do
    local at, h, l, own = read(batch[i])
    if after(h, l) < bound then return at, first + i - 1, after(h, l) + own end
  end
  if #batch < 8 then return nil end
  first = first + 8
  local past = call('ZCARD', key) - 1
  local found, rank, sum
  while first <= past do
    local middle = math.floor((first + past) / 2)
    local at, h, l, own = read(call('ZRANGE', key, middle, middle)[1])
    if after(h, l) < bound then
      found, rank, sum, past = at, middle, after(h, l) + own, middle - 1
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
      return rest + first.own, first.at, rest, i - 1
    end
  end
  local first = call('ZRANGEBYLEX', key, '[' .. from_time(t - window + 1), '+', 'LIMIT', '0', '1')[1]
  local oldest, h, l, own = read(first)
  local rest = after(h, l)
  return rest + own, oldest, rest
end

-- The time of the entry whose expiry frees a unit, once `more` is appended to what `count` found.
local function frees(window, max, used, oldest, rest, more)
  -- Mostly the first entry that counts.
  if used + more <= max or rest + more < max then return oldest end
  return find(t - window + 1, max - more) or t
end
