-- Reads what an operation needs on the general path, after log.lua. It may have a default policy besides its own, a caller's id, or
-- a resolution, or be a repetition.

-- The operation with its log (see `open`), its limits with what counts in each, the default policy's first, and the verdict.
local function evaluate(key, request, newest)
  local log = open(key, newest)
  local defaults, form, kind, _, cost, ttl, number = parse('>BBBI7I7I2I4', request)
  local is_own = form < CALLER_ID
  local head_len, limits_end = is_own and OWN_HEAD_LEN or CALLER_HEAD_LEN, #request
  local id = sub(request, is_own and OP_HEAD_LEN - 1 or OP_HEAD_LEN + 1, head_len)
  local resolution, exact
  if form % CALLER_ID == RESOLUTION then
    limits_end = limits_end - LIMIT_LEN
    resolution, exact = parse('>I7I7', request, limits_end + 1)
  end

  local limits, longest, cap = limits_in(log, request, head_len + 1, limits_end, cost)
  local fits, fits_default = true, true
  for i, limit in ipairs(limits) do
    if limit.used + cost > limit.max then
      if i > defaults then fits = false else fits_default = false end
    end
  end

  -- The entry that it repeats. A repetition that may have overtaken an earlier attempt stores its own id as a caller's id.
  local known_as, entry = is_own and string.rep('\0', CALLER_ID_LEN - OWN_ID_LEN) .. id or id, nil
  if newest and has(flags_of(newest), HOLDS_IDS) then
    local score = call('ZSCORE', key, 'i' .. known_as)
    local at = score and score + TIME_BIAS
    if at and log.t - at < (exact or longest.window) then entry = find_entry(log, at, known_as) end
  end
  if is_own and since and newest and not entry then
    -- By the store's id, from the newest on, because others may lie between. The clock may have stepped since the first attempt.
    local elapsed, first = parse('>I7I7', since)
    local from, to = '[' .. from_time(given and now or math.min(now - elapsed, first) - REPEAT_SLACK_MICROS), '+'
    for seen = BATCH, REPEAT_SEARCH_MAX, BATCH do
      local members = call('ZREVRANGEBYLEX', key, to, from, 'LIMIT', '0', BATCH)
      for _, member in ipairs(members) do
        if id_of(member) == id then entry = member end
      end
      if entry or #members < BATCH then break end
      if seen == REPEAT_SEARCH_MAX then error('UNKNOWN too many newer entries to find that of an earlier attempt', 0) end
      to = '(' .. members[BATCH]
    end
  end
  -- An earlier attempt may still arrive, through another connection.
  if is_own and since and exact ~= 0 and now < parse('>I7', since, 15) then is_own, id = false, known_as end
  local earlier, earlier_cost, _
  if entry then
    earlier, _, earlier_cost = read(entry)
    local flags = flags_of(entry)
    fits, fits_default = not has(flags, DENIED), not has(flags, FINAL)
  end
  return {
    log = log, kind = kind, cost = cost, ttl = ttl, number = number, id = id, is_own = is_own, resolution = resolution, exact = exact,
    limits = limits, first_own = defaults + 1, longest = longest, cap = cap,
    fits = fits, is_refundable = fits and fits_default, earlier = earlier, earlier_cost = earlier_cost,
    appends = not entry and (kind == ATTEMPT or kind == RECORD or fits and kind == ACQUIRE), denies = kind ~= RECORD and not fits,
  }
end
