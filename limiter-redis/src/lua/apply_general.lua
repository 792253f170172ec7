
-- The general form, from here on.
local kind, cost = unpack_struct('>BI7', request)
local count = math.floor(#request / 14) - 1
local id = sub(request, 9, #request - 14 * count)
local t, last, high, low, tag, _ = now, -1, 0, 0, 0
-- The two oldest entries, unless callers' ids sort before them. Most questions are answered there.
local head = {}
if newest then
  last, high, low, _, tag = read(newest)
  if last > t then t = last end
  -- What no limiter wrote sorts to the ends.
  local batch = call('ZRANGE', key, '0', tag < 8 and '1' or '0')
  if tag < 8 or #batch[1] ~= 24 or byte(batch[1]) ~= 105 then
    for i = 1, #batch do
      local at, h, l, own = read(batch[i])
      head[i] = { at = at, high = h, low = l, own = own }
    end
  end
end

-- How much was appended after an entry of this running total.
local function after(h, l) return (high - h) * 281474976710656 + low - l end

-- The time and the rank of the first entry from a time on after which less than `bound` was appended.
local function find(from, bound)
  if bound <= 0 then return nil end
  for i = 1, #head do
    if head[i].at >= from and after(head[i].high, head[i].low) < bound then return head[i].at, i - 1 end
  end
  local start = from_time(from)
  local batch = call('ZRANGEBYLEX', key, '[' .. start, '+', 'LIMIT', '0', '8')
  local first = call('ZLEXCOUNT', key, '-', '(' .. start)
  for i = 1, #batch do
    local at, h, l = read(batch[i])
    if after(h, l) < bound then return at, first + i - 1 end
  end
  if #batch < 8 then return nil end
  first = first + 8
  local past = call('ZCARD', key) - 1
  local found, rank
  while first <= past do
    local middle = math.floor((first + past) / 2)
    local at, h, l = read(call('ZRANGE', key, middle, middle)[1])
    if after(h, l) < bound then
      found, rank, past = at, middle, middle - 1
    else
      first = middle + 1
    end
  end
  return found, rank
end

-- What counts in each window: `behind` is what was appended after the first entry that counts in the longest, -1 if none does;
-- `origin` is the time of that one, `whole` what counts from there on, and `expired` its rank, if it is known.
local limits, fits, longest, cap, behind, origin, whole, expired = {}, true, 0, 0, -1
for i = 1, count do
  local window, max = unpack_struct('>I7I7', request, 14 * i - 5 + #id)
  local used, oldest, rest, rank = 0, t, -1
  if last >= 0 and t - last < window then
    local h, l, own
    local first = head[1]
    if first and t - first.at < window then
      rank = 0
    else
      first = head[2]
      if first and t - first.at < window then rank = 1 end
    end
    if rank then
      oldest, h, l, own = first.at, first.high, first.low, first.own
    else
      first = call('ZRANGEBYLEX', key, '[' .. from_time(t - window + 1), '+', 'LIMIT', '0', '1')[1]
      oldest, h, l, own = read(first)
    end
    rest = after(h, l)
    used = rest + own
  end
  if used + cost > max then fits = false end
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if max > cap then cap = max end
  limits[i] = { window = window, max = max, used = used, oldest = oldest, blocker = oldest, rest = rest }
end

-- The entry that this operation appended when it was sent before.
local admitted, at = fits, nil
if #id == 16 then
  local index = tag >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + 9007199254740992
  if appended and t - appended < longest then
    local from, past, skip = '[' .. from_time(appended), '(' .. past_time(appended), 0
    repeat
      local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '64')
      for i = 1, #batch do
        local _, _, _, _, mark = read(batch[i])
        if mark % 4 >= 2 and id_of(batch[i], mark) == id then at, admitted = appended, mark % 2 == 0 end
      end
      skip = skip + 64
    until at or #batch < 64
  end
elseif ARGV[3] and last >= 0 then
  local since = given and now or now - ARGV[3] - 1000000
  local from, skip = '[' .. from_time(since), 0
  repeat
    if skip >= 4096 then error('UNKNOWN too many newer entries to find the one of the first attempt', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', from, 'LIMIT', skip, '64')
    for i = 1, #batch do
      local time, _, _, _, mark = read(batch[i])
      if mark % 4 < 2 and id_of(batch[i], mark) == id then at, admitted = time, mark % 2 == 0 end
    end
    skip = skip + 64
  until at or #batch < 64
end

local append = not at and (kind == 2 or kind == 3 or (fits and kind == 1))
local more = append and cost or 0
local keep
for i = 1, count do
  local limit = limits[i]
  if fits and not at then
    -- Then the first that counts is the oldest, and nothing blocks.
    if append and limit.used == 0 then limit.oldest = t end
    limit.used = limit.used + more
  else
    local used, from = limit.used + more, t - limit.window + 1
    -- The bounds are exceeded by one entry in the common case: the first that counts.
    if used > limit.max and limit.rest + more >= limit.max then limit.oldest = find(from, limit.max - more) or t end
    if used + cost > limit.max and kind ~= 3 and limit.rest + more > limit.max - cost then
      limit.blocker = find(from, limit.max - more - cost + 1) or t
    end
    limit.used = used
  end
end
if append and behind >= 0 and behind + cost >= cap then
  _, keep = find(t - longest + 1, cap - cost)
  keep = keep or -1
end

if append then
  if last < t and (behind < 0 or keep == -1) then high, low = 0, 0 end
  high, low = carry(high, low + cost)
  local ids = tag >= 8 and count_ids() or 0
  local entry
  if fits and #id == 6 and ids == 0 and high == 0 and low < 549755813888 and t - origin < 281474976710656
    and (last < t or is_short(newest)) then
    entry = pack('>i7I5I6I2', t - 9007199254740992, low, t - origin, math.min(whole + cost, 65535)) .. id
  else
    local own = (fits and 0 or 1) + (cost > 1 and 4 or 0) + (ids > 0 and 8 or 0)
    if #id == 16 then own, ids = own % 8 + 10, ids + 1 end
    entry = long(t, high, low, own, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- The first write must be one that a full server refuses.
  if #id == 16 then
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  else
    call('ZADD', key, '0', entry)
  end
  if newest then
    -- A new id moves the ranks up by one.
    local moved, first = #id == 16 and 1 or 0
    if keep == -1 then
      first = call('ZRANK', key, entry)
    else
      first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
      if keep then first = math.max(first, keep + moved) end
    end
    drop(ids, first - 1)
  end
  if given then
    -- The caller's time says nothing about the server's: kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
  else
    -- A caller's id leaves no room to say how long.
    local kept = #id == 6 and unpack_struct('>I2', id) or 0
    if kept == 0 then
      call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
    elseif not newest or keep_of(newest, tag) ~= kept or expiry(last, kept) ~= expiry(t, kept) then
      call('PEXPIREAT', key, expiry(t, kept))
    end
  end
  last = t
end

local code = (admitted and 1 or 0) + (append and 2 or at and 4 or 0) + (last < 0 and 16 or 0)
local reply = { pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t) }
for i = 1, count do
  local limit = limits[i]
  reply[i + 1] = pack('>I7I7I7', math.min(limit.used, 9007199254740992), limit.oldest, limit.blocker)
end
return table.concat(reply)
