-- ARGV: kind (a acquire, t attempt, r record, p peek), cost, id, given time or '', microseconds since the first
-- sending if repeated or '', then window and maximum of each limit.
local kind, cost, id, given, again = ARGV[1], ARGV[2] + 0, ARGV[3], ARGV[4], ARGV[5]
local now
if given == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = given + 0
end

-- The newest entry: the log's time and running total.
local t, last, high, low = now, -1, 0, 0
local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
local member = newest[1]
if member then
  last = tonumber(newest[2])
  if last >= 0 then
    if #member ~= 18 or byte(member, 10) ~= 0 or last % 1 ~= 0 then cost_of(member, last) end
    high, low = unpack_struct('>I3I6', member)
    if last > t then t = last end
  elseif #member ~= 17 or byte(member) ~= 105 then
    damaged(member)
  else
    last = -1
  end
end

-- How much was appended after an entry.
local function after(entry)
  local h, l = unpack_struct('>I3I6', entry)
  return (high - h) * 281474976710656 + low - l
end

-- The first entry at or after score `from` after which less than `bound` was appended.
local function find(from, bound)
  if bound <= 0 then return nil end
  local batch = call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '8')
  for i = 1, #batch, 2 do
    local at = tonumber(batch[i + 1])
    cost_of(batch[i], at)
    if after(batch[i]) < bound then return at, batch[i] end
  end
  if #batch < 16 then return nil end
  local first, past = call('ZCOUNT', key, '-inf', '(' .. from) + 8, call('ZCARD', key) - 1
  local at, found
  while first <= past do
    local middle = math.floor((first + past) / 2)
    local entry = call('ZRANGE', key, middle, middle, 'WITHSCORES')
    local score = tonumber(entry[2])
    cost_of(entry[1], score)
    if after(entry[1]) < bound then
      at, found, past = score, entry[1], middle - 1
    else
      first = middle + 1
    end
  end
  return at, found
end

-- What counts in each window: code, time, newest, entry, then (used, oldest, blocker) of each limit.
local reply = { 0, 0, 0, 0 }
local fits, longest, cap, start, behind = true, 0, 0, '0', -1
for i = 6, #ARGV, 2 do
  local window, max = ARGV[i] + 0, ARGV[i + 1] + 0
  local from = t - window + 1
  from = from > 0 and format('%.0f', from) or '0'
  local used, oldest, blocker, rest = 0, t, 0, -1
  if last >= 0 and last > t - window then
    local first = call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    local entry = first[1]
    oldest = first[2] + 0
    rest = after(entry)
    local unit = #entry == 18 and byte(entry, 10) == 0 and oldest % 1 == 0
    used = rest + (unit and 1 or cost_of(entry, oldest))
  end
  if used + cost > max then
    fits = false
    blocker = oldest
    if rest >= max - cost + 1 then blocker = find(from, max - cost + 1) or 0 end
    if rest >= max then oldest = find(from, max) end
  end
  if window > longest then longest, start, behind = window, from, rest end
  if max > cap then cap = max end
  local place = (i - 6) / 2 * 3 + 5
  reply[place], reply[place + 1], reply[place + 2] = used, oldest, blocker
end

-- The entry that an earlier sending of this operation appended.
local admitted, at = fits, nil
if #id == 16 then
  local score = last >= 0 and call('ZSCORE', key, 'i' .. id)
  score = score and -score - 1
  if score and t - score < longest then
    local same = format('%.0f', score)
    local from = 0
    repeat
      local batch = call('ZRANGEBYSCORE', key, same, same, 'LIMIT', from, '64')
      for i = 1, #batch do
        if #batch[i] >= 26 and sub(batch[i], 11, 26) == id and byte(batch[i], 10) % 4 >= 2 then
          at, admitted = score, byte(batch[i], 10) % 2 == 0
        end
      end
      from = from + 64
    until at or #batch < 64
  end
elseif again ~= '' and last >= 0 then
  local since = given == '' and now - again - 1000000 or now
  since = since > 0 and format('%.0f', since) or '0'
  local from = 0
  repeat
    if from >= 4096 then error('UNKNOWN too many newer entries to find the one of the first attempt', 0) end
    local batch = call('ZREVRANGEBYSCORE', key, '+inf', since, 'WITHSCORES', 'LIMIT', from, '64')
    for i = 1, #batch, 2 do
      local entry = batch[i]
      if sub(entry, 11, 18) == id and byte(entry, 10) % 4 < 2 then
        at, admitted = tonumber(batch[i + 1]), byte(entry, 10) % 2 == 0
      end
    end
    from = from + 64
  until at or #batch < 128
end

local append = not at and (kind == 't' or kind == 'r' or (fits and kind == 'a'))
local more = append and cost or 0
local kept
if append and not fits or at then
  for i = 6, #ARGV, 2 do
    local place, max = (i - 6) / 2 * 3 + 5, ARGV[i + 1] + 0
    local from = t - ARGV[i] + 1
    from = from > 0 and format('%.0f', from) or '0'
    local used = reply[place] + more
    if used > max then reply[place + 1] = find(from, max - more) or t end
    if used + cost > max and kind ~= 'r' then reply[place + 2] = find(from, max - more - cost + 1) or t end
  end
  if append and behind + cost >= cap then
    local _
    _, kept = find(start, cap - cost)
    kept = kept or ''
  end
end

if append then
  if last < t and (behind < 0 or kept == '') then high, low = 0, 0 end
  low = low + cost
  if low >= 281474976710656 then
    local carry = math.floor(low / 281474976710656)
    high, low = high + carry, low - carry * 281474976710656
  end
  if high >= 16777216 then error('DAMAGED the running total has overflowed', 0) end
  local tag = (fits and 0 or 1) + (#id == 16 and 2 or 0) + (cost > 1 and 4 or 0)
  local entry = pack('>I3I6B', high, low, tag) .. id
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- The first write must be one that a full server refuses.
  if #id == 16 then
    call('ZADD', key, t, entry, -t - 1, 'i' .. id)
  else
    call('ZADD', key, t, entry)
  end
  if member then call('ZREMRANGEBYSCORE', key, '-' .. start, '(' .. start) end
  if kept then
    local indexed = call('ZCOUNT', key, '-inf', '(0')
    local count = call('ZRANK', key, kept == '' and entry or kept) - indexed
    local ids = {}
    if indexed > 0 then
      for from = indexed, indexed + count - 1, 64 do
        local batch = call('ZRANGE', key, from, math.min(from + 63, indexed + count - 1))
        for i = 1, #batch do
          if (byte(batch[i], 10) or 0) % 4 >= 2 then ids[#ids + 1] = 'i' .. sub(batch[i], 11, 26) end
        end
      end
    end
    if count > 0 then call('ZREMRANGEBYRANK', key, indexed, indexed + count - 1) end
    for i = 1, #ids do call('ZREM', key, ids[i]) end
  end
  if given == '' then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  else
    -- The caller's time says nothing about the server's: kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
  end
  for place = 5, #reply, 3 do
    if reply[place] == 0 then reply[place + 1] = t end
    reply[place] = reply[place] + cost
  end
  last = t
end

reply[1] = (at and 4 or append and 2 or 0) + (admitted and 1 or 0)
reply[2], reply[3], reply[4] = t, last, at or t
return reply
