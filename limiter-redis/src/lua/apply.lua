
-- The general form of an operation, after head.lua, apply_fast.lua, prelude.lua and append.lua.
read_log(now, newest)
local kind, deadline, cost = unpack_struct('>BI7I7', request)
local retention = kind > $RETENTION
if retention then kind = kind - $RETENTION end
local windows = math.floor((#request - $OWN_HEAD_LEN) / $LIMIT_LEN)
local id = sub(request, $OP_HEAD_LEN + 1, #request - $LIMIT_LEN * windows)

-- What counts in each window. Of the longest, `behind` is the sum after the first entry that counts (-1 if none does), `origin`
-- the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a log holds.
local limits, fits, longest, cap, behind, origin, whole, expired = {}, true, 0, 0, -1
for i = 1, windows do
  local window, max = unpack_struct('>I7I7', request, $OP_HEAD_LEN + 1 + #id + $LIMIT_LEN * (i - 1))
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if retention and i == 1 then
    cap = max + 1
  else
    if used + cost > max then fits = false end
    if max > cap then cap = max end
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, blocker = oldest, rest = rest }
  end
end

-- The entry that an earlier attempt of this operation appended.
local admitted, at = fits, nil
if #id == $CALLER_ID_LEN then
  local index = tag >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + $TIME_BIAS
  if appended and t - appended < longest then
    local from, past, skip = '[' .. from_time(appended), '(' .. past_time(appended), 0
    repeat
      local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '$BATCH')
      for i = 1, #batch do
        local _, _, _, _, entry_tag = read(batch[i])
        if entry_tag % 4 >= 2 and id_of(batch[i], entry_tag) == id then at, admitted = appended, entry_tag % 2 == 0 end
      end
      skip = skip + $BATCH
    until at or #batch < $BATCH
  end
elseif ARGV[3] and last >= 0 then
  local since = given and now or now - ARGV[3] - $REPEAT_SLACK_MICROS
  local from, skip = '[' .. from_time(since), 0
  repeat
    if skip >= $REPEAT_SEARCH_MAX then error('UNKNOWN too many newer entries to find that of the first attempt', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', from, 'LIMIT', skip, '$BATCH')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      if entry_tag % 4 < 2 and id_of(batch[i], entry_tag) == id then at, admitted = time, entry_tag % 2 == 0 end
    end
    skip = skip + $BATCH
  until at or #batch < $BATCH
end

local append = not at and (kind == $ATTEMPT or kind == $RECORD or (fits and kind == $ACQUIRE))
if append and now >= deadline then return string.char($LATE) end
local more = append and cost or 0
for i = 1, #limits do
  local limit = limits[i]
  local used, max, rest = limit.used, limit.max, limit.rest
  if fits and not at then
    -- The first entry that counts is the oldest, and nothing blocks.
    if append and used == 0 then limit.oldest = t end
  else
    limit.oldest = frees(limit.window, max, used, limit.oldest, rest, more)
    if used + more + cost > max and kind ~= $RECORD and rest + more > max - cost then
      limit.blocker = find(t - limit.window + 1, max - more - cost + 1) or t
    end
  end
  limit.used = used + more
end

if append then
  -- The rank of the first entry that the cap lets stay, nil if all may. Then the log begins there, or with the new entry.
  local kept
  if behind >= 0 and behind + cost >= cap then
    origin, kept, whole = find(t - longest + 1, cap - cost)
    if not kept then origin, kept, whole = t, -1, 0 end
  end
  lower_total(behind < 0 or kept == -1)
  high, low = carry(high, low + cost)
  local ids = tag >= 8 and count_ids() or 0
  local entry
  if #id == $OWN_ID_LEN and ids == 0 and high == 0 and low < $SHORT_TOTAL_END and t - origin < $AGE_END
    and (last < t or is_short(newest)) then
    entry = pack('>i7I5I6I2', t - $TIME_BIAS, low, t - origin, math.min(whole + cost, $SUM_MAX))
    entry = entry .. (fits and id or sub(id, 1, 2) .. string.char(byte(id, 3) + $DENIED_BYTE) .. sub(id, 4))
  else
    local entry_tag = (fits and 0 or 1) + (cost > 1 and 4 or 0) + (ids > 0 and 8 or 0)
    if #id == $CALLER_ID_LEN then entry_tag, ids = entry_tag % 8 + 10, ids + 1 end
    entry = long(t, high, low, entry_tag, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  if #id == $CALLER_ID_LEN then
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  else
    call('ZADD', key, '0', entry)
  end
  -- A new id moves all ranks up by one.
  if newest then trim(entry, kept, expired, longest, ids, #id == $CALLER_ID_LEN and 1 or 0) end
  -- A caller's id leaves no room for a ttl code.
  keep_alive(now, given, newest, longest, #id == $OWN_ID_LEN and unpack_struct('>I2', id) or 0)
  last = t
end

local code = (admitted and $ADMITTED or 0) + (append and $APPENDED or at and $REPEATED or 0) + (last < 0 and $EMPTY or 0)
local reply = pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t)
for i = 1, #limits do
  local limit = limits[i]
  reply = reply .. pack('>I7I7I7', math.min(limit.used, $USED_MAX), limit.oldest, limit.blocker)
end
return reply
