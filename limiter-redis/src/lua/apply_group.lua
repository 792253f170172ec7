
-- Decides on acquires that are alike, one after another at one time, where only admitted requests count. The script is head.lua,
-- prelude.lua, append.lua and this file.
--
-- ARGV[1]: the request of the first, with the store's id; see apply_fast.lua. ARGV[3]: the last 4 bytes of each one's id. ARGV[4]:
-- microseconds since the first attempt, if this is a repetition.
--
-- The entries of earlier attempts come first, and are repeated. Of the others, some fit and are appended. The rest are denied.
--
-- Returns a string: a code (1 byte), which is EMPTY, 0, or LATE alone; then 7 bytes each: time, newest before, and how many fit;
-- for each limit used, oldest and blocker, before the others were appended and afterwards; and, if any was repeated, the time of
-- each one's entry, TIME_END for those that were not.
local ids, since = ARGV[3], ARGV[4]
read_log(now, newest)
local kind, deadline, cost, ttl = unpack_struct('>BI7I7I2', request)
local retention = kind > $RETENTION
local prefix = sub(request, $OP_HEAD_LEN + 1, $OP_HEAD_LEN + 2)

-- Finds the entries of earlier attempts, from the newest on. Each attempt appended what fitted then, so others may lie between.
local times = ''
if since and last >= 0 then
  local places, found, left = {}, {}, #ids / 4
  for i = 1, left do places[prefix .. sub(ids, 4 * i - 3, 4 * i)] = i end
  local least, skip = '[' .. from_time(given and now or now - since - $REPEAT_SLACK_MICROS), 0
  repeat
    if skip >= $REPEAT_SEARCH_MAX then error('UNKNOWN too many newer entries to find those of earlier attempts', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', least, 'LIMIT', skip, '$BATCH')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      local place = entry_tag % 4 < 2 and places[id_of(batch[i], entry_tag)]
      if place then found[place], left = time, left - 1 end
    end
    skip = skip + $BATCH
  until left == 0 or #batch < $BATCH
  if next(found) then
    local others = ''
    for i = 1, #ids / 4 do
      times = times .. pack('>I7', found[i] or $TIME_END)
      if not found[i] then others = others .. sub(ids, 4 * i - 3, 4 * i) end
    end
    ids = others
  end
end

-- What counts in each window, and how many fit. Of the longest, `behind` is the sum after the first entry that counts (-1 if none
-- does), `origin` the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a
-- log holds.
local limits, fit, longest, cap, behind, origin, whole, expired = {}, #ids / 4, 0, 0, -1
local others = fit
for i = $OWN_HEAD_LEN + 1, #request, $LIMIT_LEN do
  local window, max = unpack_struct('>I7I7', request, i)
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if retention then
    cap, retention = max + 1, false
  else
    -- The quotient may be rounded up.
    while fit > 0 and used + fit * cost > max do
      fit = math.min(fit - 1, math.max(0, math.floor((max - used) / cost)))
    end
    cap = math.max(cap, max)
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, rest = rest }
  end
end
if fit > 0 and now >= deadline then return string.char($LATE) end

-- A limit once `more` is appended.
local function usage(limit, more)
  local window, max, used, rest, blocker = limit.window, limit.max, limit.used, limit.rest, limit.oldest
  if used + more + cost > max and rest + more > max - cost then
    blocker = find(t - window + 1, max - more - cost + 1) or t
  end
  local oldest = frees(window, max, used, limit.oldest, rest, more)
  return pack('>I7I7I7', math.min(used + more, $USED_MAX), oldest, blocker)
end

local more, facts = fit * cost, ''
for i = 1, #limits do
  local before = usage(limits[i], 0)
  facts = facts .. before .. (fit > 0 and fit < others and usage(limits[i], more) or before)
end
local reply = pack('>BI7I7I7', last < 0 and $EMPTY or 0, t, math.max(last, 0), fit) .. facts .. times

if fit > 0 then
  -- The rank of the first entry that the cap lets stay, nil if all may. Then the log begins there, or with the first new entry.
  local kept
  if behind >= 0 and behind + more >= cap then
    origin, kept, whole = find(t - longest + 1, cap - more)
    if not kept then origin, kept, whole = t, -1, 0 end
  end
  lower_total(behind < 0 or kept == -1)
  local callers = tag >= 8 and count_ids() or 0
  local entry_tag, suffix = (cost > 1 and 4 or 0) + (callers > 0 and 8 or 0), cost > 1 and pack('>I7', cost)
  local short = callers == 0 and high == 0 and low + more < $SHORT_TOTAL_END and t - origin < $AGE_END
    and (last < t or is_short(newest))
  -- The age and the sum are those of the newest entry, because no other one is asked for them.
  local head, rest = pack('>i7', t - $TIME_BIAS), pack('>I6I2I2', t - origin, math.min(whole + more, $SUM_MAX), ttl)
  local numbers, add = { unpack_struct('>' .. string.rep('I4', fit), ids) }, { key }
  for i = 1, fit do
    local entry
    low = low + cost
    if short then
      entry = pack('c7>I5c10I4', head, low, rest, numbers[i])
    else
      if low >= $LOW_END then high, low = carry(high, low) end
      entry = long(t, high, low, entry_tag, prefix .. sub(ids, 4 * i - 3, 4 * i))
    end
    add[2 * i], add[2 * i + 1] = '0', suffix and entry .. suffix or entry
  end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  call('ZADD', unpack(add))
  if newest then trim(add[3], kept, expired, longest, callers, 0) end
  keep_alive(now, given, newest, longest, ttl)
end
return reply
