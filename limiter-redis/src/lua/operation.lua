
-- The beginning of apply.lua, and the steps before and after an append, after prelude.lua.
local kind, deadline, cost = unpack_struct('>BI7I7', request)
-- Before anything else: after a stop, the server has many of these to catch up with, and nobody waits for them.
if now >= deadline then return string.char($LATE) end
read_log(now, newest)
-- The marks of a new entry, as its tag has them; see `make_room`.
local marks = 0
local id = sub(request, $OP_HEAD_LEN + 1, #request - $LIMIT_LEN * math.floor((#request - $OWN_HEAD_LEN) / $LIMIT_LEN))
local first_own = $OP_HEAD_LEN + #id + 1 + math.floor(kind / $KINDS) * $LIMIT_LEN
kind = kind % $KINDS

-- The entries that count in each window. Of the longest, `behind` is the sum after the first entry that counts (-1 if none does), `origin`
-- the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a log holds.
-- `verdict` is that of the entry's tag: 0, 1 if it is denied, or FINAL.
local limits, longest, cap, verdict, behind, origin, whole, expired = {}, 0, 0, 0, -1
for i = $OP_HEAD_LEN + #id + 1, #request, $LIMIT_LEN do
  local window, max = unpack_struct('>I7I7', request, i)
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if max > cap then cap = max end
  if used + cost > max then verdict = i < first_own and $FINAL or 1 end
  if i >= first_own then
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, rest = rest }
  end
end

-- Finds the entry of an earlier attempt by the store's id, from the newest on, because others may lie between. Returns its time
-- and tag.
local function find_earlier(since)
  local skip = 0
  local least = '[' .. from_time(given and now or now - since - $REPEAT_SLACK_MICROS)
  repeat
    if skip >= $REPEAT_SEARCH_MAX then error('UNKNOWN too many newer entries to find that of an earlier attempt', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', least, 'LIMIT', skip, '$BATCH')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      if entry_tag % 4 < 2 and id_of(batch[i], entry_tag) == id then return time, entry_tag end
    end
    skip = skip + $BATCH
  until #batch < $BATCH
end

-- Used, oldest and blocker of a limit once `more` is appended. `blocks` if a repetition may be denied.
local function usage(limit, more, blocks)
  local window, max, used, rest, blocker = limit.window, limit.max, limit.used, limit.rest, limit.oldest
  if blocks and used + more + cost > max and rest + more > max - cost then
    blocker = find(t - window + 1, max - more - cost + 1) or t
  end
  local oldest = frees(window, max, used, limit.oldest, rest, more)
  return pack('>I7I7I7', math.min(used + more, $USED_MAX), oldest, blocker)
end

-- Precedes an append of `more`. Returns the rank of the first entry that the cap lets stay: nil if all may, -1 if none. Then the
-- log begins there, or with the first new entry.
local function make_room(more)
  local capped
  if behind >= 0 and behind + more >= cap then
    origin, capped, whole = find(t - longest + 1, cap - more)
    if not capped then origin, capped, whole = t, -1, 0 end
  end
  if behind >= 0 and capped ~= -1 then
    -- In the same cell of ten minutes, the marks stay. In the next, the first becomes the second.
    local cells = t - t % $TEN_MINUTES - last + last % $TEN_MINUTES
    if cells == 0 then
      marks = tag % $FINAL - tag % $NAMED
    elseif cells == $TEN_MINUTES and tag % $NAMED_BEFORE >= $NAMED then
      marks = $NAMED_BEFORE
    end
  end
  if windows and byte(windows) > 0 and marks % $NAMED_BEFORE == 0 then marks = marks + $NAMED end
  -- Lowers the running total that the new entries go on from: to 0 if they are the first that count, and otherwise long before
  -- it overflows. Entries of one time sort by their totals, so it falls between two times only.
  if last < t then
    if behind < 0 or capped == -1 then high, low = 0, 0 elseif high >= $FALL_FROM then high = high - $FALL end
  end
  return capped
end

-- Whether new entries up to this running total are short, in a log with this number of callers' ids.
local function can_be_short(ids, total)
  return ids == 0 and marks == 0 and high == 0 and total < $SHORT_TOTAL_END and t - origin < $AGE_END and (last < t or is_short(newest))
end

-- Removes callers' ids whose entries have left the log, from the oldest on: more than an append adds, but not all, because there may
-- be thousands.
local function prune()
  for _ = 1, 2 do
    local oldest = call('ZRANGE', key, '0', '0', 'WITHSCORES')
    local at = oldest[2] + $TIME_BIAS
    if at == $TIME_BIAS or find_entry(at, sub(oldest[1], 2), nil, true) then return end
    local next_entry = call('ZRANGEBYLEX', key, '[' .. from_time(at), '+', 'LIMIT', '0', '1')[1]
    local between = call('ZCOUNT', key, '-inf', string.format('(%.0f', time_of(next_entry) - $TIME_BIAS))
    call('ZREMRANGEBYRANK', key, '0', math.min(math.max(between, 1), $PRUNE_BATCH) - 1)
  end
end

-- Follows an append, whose first entry is `entry` and which moved the ranks by `moved`. Drops what no limit can see: the entries that
-- have left the longest window, and those before `capped`.
local function drop_unseen(entry, capped, ids, moved)
  local first
  if capped == -1 then
    first = call('ZRANK', key, entry)
  else
    first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
    if capped then first = math.max(first, capped + moved) end
  end
  drop(ids, first - 1)
end

-- Sets when the key expires, unless the entry that was the newest `has_same` expiry. Nothing is read afterwards: if the window is
-- shorter than the script takes, the key is gone.
local function expire(ttl, has_same)
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + $GIVEN_TIME_GRACE_MS)
  elseif ttl == 0 then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  elseif not has_same then
    call('PEXPIREAT', key, expiry(t, ttl))
  end
end
