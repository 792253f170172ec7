-- Reads what an operation needs on the general path, after log.lua. It may have a default policy besides its own, a caller's id, or
-- a resolution, or be a repetition.

-- The entry of an earlier attempt by the store's id, from the newest on, because others may lie between.
local function find_earlier(op)
  local from, to = '[' .. from_time(given and now or now - since - REPEAT_SLACK_MICROS), '+'
  for read_before = 0, REPEAT_SEARCH_MAX - BATCH, BATCH do
    local members = range_back(op, from, to, BATCH)
    for i = 1, #members do
      if id_of(members[i]) == op.id then return members[i] end
    end
    if #members < BATCH then return end
    to = '(' .. members[BATCH]
  end
  error('UNKNOWN too many newer entries to find that of an earlier attempt', 0)
end

-- The operation with its log (see `open`), its limits with what counts in each, the default policy's first, and the verdict.
local function evaluate(key, request, newest)
  local op = open(key, newest)
  local defaults, form, kind, _, cost = parse('>BBBI7I7', request)
  local is_own = form < CALLER_ID
  local head_len, limits_end = is_own and OWN_HEAD_LEN or CALLER_HEAD_LEN, #request
  op.kind, op.cost, op.id, op.is_own = kind, cost, sub(request, OP_HEAD_LEN + 1, head_len), is_own
  if form % CALLER_ID == RESOLUTION then
    limits_end = limits_end - LIMIT_LEN
    op.resolution, op.exact = parse('>I7I7', request, limits_end + 1)
  end

  -- `cap` is the largest maximum: the most that a log holds.
  local limits, longest, cap, fits, fits_default = {}, nil, 0, true, true
  for place = head_len + 1, limits_end, LIMIT_LEN do
    local window, max = parse('>I7I7', request, place)
    local used, oldest, rest, first = count_in(op, window)
    local limit = { window = window, max = max, used = used, oldest = oldest, rest = rest, first = first }
    limits[#limits + 1] = limit
    if not longest or window > longest.window then longest = limit end
    if max > cap then cap = max end
    if used + cost > max then
      if #limits > defaults then fits = false else fits_default = false end
    end
  end
  op.limits, op.first_own, op.longest, op.cap = limits, defaults + 1, longest, cap

  local entry
  if not is_own then
    local score = newest and has(flags_of(newest), HOLDS_IDS) and call('ZSCORE', key, 'i' .. op.id)
    local at = score and score + TIME_BIAS
    if at and op.t - at < (op.exact or longest.window) then entry = find_entry(op, at, op.id) end
  elseif since and newest then
    entry = find_earlier(op)
  end
  if entry then
    local flags = flags_of(entry)
    op.earlier, fits, fits_default = read(entry), not has(flags, DENIED), not has(flags, FINAL)
  end
  op.fits, op.is_refundable = fits, fits and fits_default
  op.appends = not entry and (kind == ATTEMPT or kind == RECORD or fits and kind == ACQUIRE)
  op.denies = kind ~= RECORD and not fits
  return op
end
