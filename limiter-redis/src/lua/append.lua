-- Writes an operation's entry on the general path, after merge.lua.

-- Appends the entry, drops what no limit can see, and merges. Returns the entry and whether others have merged.
local function append(op)
  local log, cost, longest = op.log, op.cost, op.longest
  local key, t, newest = log.key, log.t, log.newest
  -- The first entry that stays, if others go; its time; and the sum from it on. If none stays, the log begins with the new one.
  local stays, first, origin, whole = longest.rest ~= nil, longest.first, longest.oldest, longest.used
  if stays and longest.rest + cost >= op.cap then
    origin, whole, first = find(log, t - longest.window + 1, op.cap - cost)
    stays = first ~= nil
  end
  if not stays then origin, whole = t, 0 end

  -- Entries of one time sort by their laps and totals.
  local same_time, follows_long, total, lap = log.last == t, newest and byte(newest, 8) >= LONG_BYTE, log.total, LAP_START
  if same_time and follows_long then lap = parse('>I2', newest, 8) end
  if not same_time and not stays then total = 0 end
  total, lap = shifted(total, lap, cost)
  if not same_time then lap = LAP_START end

  local groups, joined, units = nil, nil, cost
  if op.resolution and stays then
    if op.exact > 0 and not same_time then
      groups, origin = find_groups(op, first, origin)
    elseif op.exact == 0 and t - t % op.resolution <= log.last then
      -- The new entry takes over the newest, if every limit counts that.
      joined = newest
      for _, limit in ipairs(op.limits) do
        if t - log.last >= limit.window then joined = nil end
      end
    end
  end
  if joined then
    local _, _, taken = read(joined)
    units = math.min(cost + taken, MAX_COST)
    if taken == whole then origin = t end
  end

  local flags = (op.fits and 0 or DENIED) + (op.fits and not op.is_refundable and FINAL or 0)
  local has_ids = not op.is_own or follows_long and has(flags_of(newest), HOLDS_IDS) and #call('ZRANGE', key, '0', '0')[1] == ID_MEMBER_LEN
  local is_short = not has_ids and lap == LAP_START and total < SHORT_TOTAL_END and t - origin < AGE_END
    and not (same_time and follows_long)
  local entry
  if is_short then
    local number = op.number + flags * 2 ^ 24
    entry = pack('>i7I5I6I2I2I4', t - TIME_BIAS, total, t - origin, math.min(whole + cost, SUM_MAX), op.ttl, number)
  else
    if has_ids then flags = flags + HOLDS_IDS end
    if op.is_renewed then flags = flags + RENEWED end
    entry = pack('>i7I2I7B', t - TIME_BIAS, lap, total, flags) .. (op.is_own and '' or pack('>I2', op.ttl)) .. op.id
  end
  if units > 1 then entry = entry .. pack('>I7', units) end

  -- Redis checks its memory limit before the first write only, so an entry is added before others go.
  if op.is_own or op.has_lost_id then
    call('ZADD', key, '0', entry)
  else
    call('ZADD', key, '0', entry, t - TIME_BIAS, 'i' .. op.id)
  end
  local drops = newest and not (stays and (not first or first == head(log)[1]))
  if drops then call('ZREMRANGEBYLEX', key, '[\224', '(' .. (stays and first or entry)) end
  if joined then call('ZREM', key, joined) end
  for _, group in ipairs(groups or {}) do
    call('ZADD', key, '0', group.merged)
    call('ZREMRANGEBYLEX', key, '[' .. group.older, '(' .. group.merged)
  end
  -- Callers' ids whose entries have left the log go, from the oldest on: more than an append adds, but not all, because there may be
  -- thousands.
  for _ = 1, has_ids and (drops or groups or op.is_own) and 2 or 0 do
    local oldest = call('ZRANGE', key, '0', '0', 'WITHSCORES')
    local at = oldest[2] + TIME_BIAS
    if #oldest[1] ~= ID_MEMBER_LEN or find_entry(log, at, sub(oldest[1], 2), nil, true) then break end
    local next_entry = read(range(log, '[' .. from_time(at), '+', '1')[1])
    local between = call('ZCOUNT', key, '-inf', string.format('(%.0f', next_entry - TIME_BIAS))
    call('ZREMRANGEBYRANK', key, '0', math.min(math.max(between, 1), PRUNE_BATCH) - 1)
  end
  return entry, joined or groups and #groups > 0
end

-- Used before the operation, oldest and blocker of each of the operation's own limits. `log` is the one that `evaluate` read, or the
-- one after the append.
local function facts(op, log, appends)
  local reply, t, cost = '', log.t, op.cost
  for i = op.first_own, #op.limits do
    local limit = op.limits[i]
    local from, max, oldest, rest = t - limit.window + 1, limit.max, limit.oldest, limit.rest
    -- What is appended to the entries that `rest` counts.
    local more = appends and cost or 0
    local used = limit.used + more
    if log ~= op.log then
      local _
      _, oldest, rest = count_in(log, limit.window, max)
      more = 0
    end
    -- Usually the expiry of the first entry suffices.
    local blocker = oldest
    if rest and not op.fits and used + cost > max and rest + more + cost > max then
      blocker = find(log, from, max - more - cost + 1) or t
    end
    if rest and used > max and rest + more >= max then oldest = find(log, from, max - more) or t end
    reply = reply .. pack('>I7I7I7', limit.used, oldest, blocker)
  end
  return reply
end

-- Appends if told to. Returns the plan: the reply, and what decides on the key's expiry.
local function finish(op, appends)
  local log = op.log
  local newest, last_ttl = log.newest, nil
  local reply = facts(op, log, appends)
  if appends then
    local entry, has_merged = append(op)
    if has_merged then reply = facts(op, open(log.key, entry), true) end
    if newest and not has(flags_of(newest), NO_EXPIRY) then
      last_ttl = parse('>I2', newest, byte(newest, 8) < LONG_BYTE and SHORT_TTL_PLACE or LONG_TTL_PLACE)
    end
  end
  local code = (op.fits and ADMITTED or 0) + (op.is_refundable and REFUNDABLE or 0) + (newest and 0 or EMPTY)
  if appends then
    code = code + APPENDED
  elseif op.earlier then
    code, reply = code + REPEATED, reply .. pack('>I7I7', op.earlier, op.earlier_cost)
  end
  reply = reply .. pack('>I7I7B', now, log.last or 0, code)
  return { reply = reply, is_written = appends, t = log.t, longest = op.longest.window, ttl = op.ttl, last = log.last, last_ttl = last_ttl }
end
