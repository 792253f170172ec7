-- Writes an operation's entry on the general path, after evaluate.lua.

-- What `member` becomes when it merges with those before it.
local function merged_entry(member, cost)
  local at, total = read(member)
  return pack('>i7I2I7BI6I7', at - TIME_BIAS, lap_of(member), total, MERGED, 0, math.min(cost, MAX_COST))
end

-- The entries that merge because the newest of them have reached the age `op.exact`: for each cell the first of them and the merged
-- entry. `first` is the first entry that stays in the log, and `origin` its time; also returns what that becomes.
local function find_groups(op, first, origin)
  local groups, t = {}, op.t
  -- From the newest that is due to the last that was due before.
  local past, least = t - op.exact, math.max(op.last - op.exact, origin - 1)
  local from, to = '[' .. from_time(least + 1), nil
  while past > least do
    local newer = range_back(op, from, '(' .. from_time(past + 1), '1')[1]
    if not newer then break end
    local u, total_u = read(newer)
    -- The first time in its cell that the same windows count.
    local start = math.max(u - u % op.resolution, origin)
    for i = 1, #op.limits do
      local edge = t - op.limits[i].window + 1
      if edge <= u and edge > start then start = edge end
    end
    local lowest = '[' .. (start > origin and from_time(start) or first)
    local older = start <= least and range_back(op, lowest, '(' .. from_time(least + 1), '1')[1] or range(op, lowest, '+', '1')[1]
    if older ~= newer then
      local _, total_v, cost_v = read(older)
      groups[#groups + 1] = { older = older, merged = merged_entry(newer, (total_u - total_v) % TOTAL_END + cost_v) }
      if older == first then origin = u end
    end
    past = start - 1
  end
  return groups, origin
end

-- Removes callers' ids whose entries have left the log, from the oldest on: more than an append adds, but not all, because there may
-- be thousands.
local function prune(op)
  for _ = 1, 2 do
    local oldest = call('ZRANGE', op.key, '0', '0', 'WITHSCORES')
    local at = oldest[2] + TIME_BIAS
    if #oldest[1] ~= ID_MEMBER_LEN or find_entry(op, at, sub(oldest[1], 2), nil, true) then return end
    local next_entry = read(range(op, '[' .. from_time(at), '+', '1')[1])
    local between = call('ZCOUNT', op.key, '-inf', string.format('(%.0f', next_entry - TIME_BIAS))
    call('ZREMRANGEBYRANK', op.key, '0', math.min(math.max(between, 1), PRUNE_BATCH) - 1)
  end
end

-- Appends the entry, drops what no limit can see, and merges. Returns the entry and whether others have merged.
local function append(op)
  local key, t, cost, newest, longest = op.key, op.t, op.cost, op.newest, op.longest
  -- The first entry that stays, its time, and the sum from it on. Nil if none does: then the log begins with the new one.
  local first, origin, whole = longest.first, longest.oldest, longest.used
  if first and longest.rest + cost >= op.cap then origin, whole, first = find(op, t - longest.window + 1, op.cap - cost) end
  if not first then origin, whole = t, 0 end

  -- Entries of one time sort by their laps and totals.
  local same_time, total, lap = op.last == t, op.total, LAP_START
  if same_time then lap = lap_of(newest) elseif not first then total = 0 end
  if total < TOTAL_END - cost then
    total = total + cost
  else
    total = total - (TOTAL_END - cost)
    if same_time then lap = lap + 1 end
    if lap >= LAP_END then error('OVERFLOW more units at one time than a log can count', 0) end
  end

  local groups, joined, units = {}, nil, cost
  if op.exact == 0 and first and t - t % op.resolution <= op.last then
    -- The new entry takes over the newest, if every limit counts that.
    joined = newest
    for i = 1, #op.limits do
      if t - op.last >= op.limits[i].window then joined = nil end
    end
    if joined then
      local _, _, taken = read(joined)
      units = math.min(cost + taken, MAX_COST)
      if joined == first then origin = t end
    end
  elseif op.resolution and op.exact > 0 and first and not same_time then
    groups, origin = find_groups(op, first, origin)
  end

  local flags = (op.fits and 0 or DENIED) + (op.fits and not op.is_refundable and FINAL or 0)
  local has_ids = newest and has(flags_of(newest), HOLDS_IDS) and #call('ZRANGE', key, '0', '0')[1] == ID_MEMBER_LEN
  local is_short = op.is_own and not has_ids and lap == LAP_START and total < SHORT_TOTAL_END and t - origin < AGE_END
    and not (same_time and byte(newest, 8) >= LONG_BYTE)
  local entry
  if is_short then
    entry = pack('>i7I5I6I2', t - TIME_BIAS, total, t - origin, math.min(whole + cost, SUM_MAX))
      .. sub(op.id, 1, 2) .. string.char(byte(op.id, 3) + flags) .. sub(op.id, 4)
  else
    if has_ids or not op.is_own then flags = flags + HOLDS_IDS end
    entry = pack('>i7I2I7B', t - TIME_BIAS, lap, total, flags) .. op.id
  end
  if units > 1 then entry = entry .. pack('>I7', units) end

  -- Redis checks its memory limit before the first write only, so an entry is added before others go.
  if op.is_own then
    call('ZADD', key, '0', entry)
  else
    call('ZADD', key, '0', entry, t - TIME_BIAS, 'i' .. op.id)
  end
  if newest and first ~= head(op)[1] then call('ZREMRANGEBYLEX', key, '[\224', '(' .. (first or entry)) end
  if joined then call('ZREM', key, joined) end
  for i = 1, #groups do
    call('ZADD', key, '0', groups[i].merged)
    call('ZREMRANGEBYLEX', key, '[' .. groups[i].older, '(' .. groups[i].merged)
  end
  if has_ids or not op.is_own then prune(op) end
  return entry, joined or #groups > 0
end

-- Sets when the key expires, unless an entry at `last` with the ttl code `last_ttl` has set the same. Nothing is read afterwards:
-- if the window is shorter than the script takes, the key is gone.
local function set_expiry(key, t, longest, ttl, last, last_ttl)
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + GIVEN_TIME_GRACE_MS)
  elseif ttl == 0 then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  else
    -- All times in a cell share an expiry, so most appends need not set it. It is at most two cells late.
    local cell = 2 ^ ((ttl - ttl % TTL_CELLS) / TTL_CELLS)
    if ttl ~= last_ttl or last - last % cell < t - t % cell then
      call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % TTL_CELLS + 1) * cell) / 1000) + 1)
    end
  end
end

-- Used before the operation, oldest and blocker of each of the operation's own limits. `log` is the one that `evaluate` read, or the
-- one after the append.
local function facts(op, log, appends)
  local reply, t, cost = '', op.t, op.cost
  for i = op.first_own, #op.limits do
    local limit = op.limits[i]
    local from, max, oldest, rest = t - limit.window + 1, limit.max, limit.oldest, limit.rest
    -- What is appended to the entries that `rest` counts.
    local more = appends and cost or 0
    local used = limit.used + more
    if log ~= op then
      local _
      _, oldest, rest = count_in(log, limit.window)
      more = 0
    end
    -- Usually the expiry of the first entry suffices.
    local blocker = oldest
    if rest and used + cost > max and rest + more + cost > max then blocker = find(log, from, max - more - cost + 1) or t end
    if rest and used > max and rest + more >= max then oldest = find(log, from, max - more) or t end
    reply = reply .. pack('>I7I7I7', limit.used, oldest, blocker)
  end
  return reply
end

-- Appends if told to. Returns the reply.
local function finish(op, appends)
  local reply, newest = facts(op, op, appends), op.newest
  if appends then
    local entry, has_merged = append(op)
    if has_merged then reply = facts(op, open(op.key, entry), true) end
    set_expiry(op.key, op.t, op.longest.window, op.is_own and parse('>I2', op.id) or 0, op.last, newest and ttl_of(newest) or 0)
  end
  local code = (op.fits and ADMITTED or 0) + (op.is_refundable and REFUNDABLE or 0) + (newest and 0 or EMPTY)
  if appends then code = code + APPENDED elseif op.earlier then code, reply = code + REPEATED, reply .. pack('>I7', op.earlier) end
  return reply .. pack('>I7I7B', now, op.last or 0, code)
end
