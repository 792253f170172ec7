-- Moves one entry to now, after change.lua. write.lua sets the key's expiry and replies.
local defaults, form, ttl = parse('>BBI2', request, RENEW_HEAD_LEN - 3)
local has_resolution = form % CALLER_ID == RESOLUTION
local limits_end = #request - (has_resolution and LIMIT_LEN or 0)

-- The entry where an earlier attempt has moved it. The store's id may then have another ttl code.
local function find_moved(log)
  local at, window = parse('>I7I7', request, CALLER_ID_LEN + 1)
  if log.t - at >= window then return nil end
  local id = sub(request, 1, CALLER_ID_LEN)
  local score = call('ZSCORE', key, 'i' .. id)
  local member = score and score + TIME_BIAS >= at and find_entry(log, score + TIME_BIAS, id)
  if member and has(flags_of(member), RENEWED) then return member end
  if not since or sub(id, 1, CALLER_ID_LEN - OWN_ID_LEN) ~= string.rep('\0', CALLER_ID_LEN - OWN_ID_LEN) then return nil end
  local number, from = sub(id, 2 - OWN_ID_LEN), '[' .. from_time(at)
  repeat
    local members = range(log, from, '+', READ_BATCH)
    for _, other in ipairs(members) do
      local found = id_of(other)
      if #found == OWN_ID_LEN and sub(found, 3) == number then return other end
    end
    from = '(' .. (members[#members] or '')
  until #members < READ_BATCH
end

-- Takes an entry out. Only differences of running totals count: either the newer entries lose its cost, or the older ones gain it.
local function take_out(log, target, cost)
  local newer, older = call('ZLEXCOUNT', key, '(' .. target, '+'), call('ZLEXCOUNT', key, '[\224', '(' .. target)
  if newer == 0 or newer < older then return set_cost(target, 0) end
  local old, new = older > 0 and call('ZRANGEBYLEX', key, '[\224', '(' .. target) or {}, {}
  for i, member in ipairs(old) do
    local _, total = read(member)
    if byte(member, 8) >= LONG_BYTE then
      new[i] = moved(member, cost, flags_of(member))
    elseif total + cost < SHORT_TOTAL_END then
      new[i] = sub(member, 1, 7) .. pack('>I5', total + cost) .. sub(member, SHORT_AGE_PLACE)
    else
      return set_cost(target, 0)
    end
  end
  rewrite(old, new, 1)
  call('ZREM', key, target)
end

local plan, log, before, id = {}, open(key, read_newest()), 0, string.rep('\0', CALLER_ID_LEN)
local target, t = find_receipt(log), log.t
if not target and log.newest and (since or form >= CALLER_ID) then target = find_moved(log) end
if target then
  local flags, at, _ = flags_of(target)
  at, _, before = read(target)
  id = id_of(target)
  -- A newer entry may have taken the caller's id.
  local score = #id == CALLER_ID_LEN and call('ZSCORE', key, 'i' .. id)
  local has_lost_id = score and score + TIME_BIAS ~= at
  take_out(log, target, before)
  -- The newest entry no longer describes the log.
  log = reopened(t)
  log.first, log.sum = nil, nil

  local is_own = #id == OWN_ID_LEN
  if is_own then id = pack('>I2', ttl) .. sub(id, 3) end
  local limits, longest, cap = limits_in(log, request, RENEW_HEAD_LEN + 1, limits_end, 1)
  local resolution, exact
  if has_resolution then resolution, exact = parse('>I7I7', request, limits_end + 1) end
  local fits = not has(flags, DENIED)
  -- No limit is reported here.
  plan = finish({
    log = log, cost = before, ttl = ttl, number = is_own and parse('>I4', id, 3), id = id, is_own = is_own, resolution = resolution,
    exact = exact, limits = limits, first_own = #limits + 1, longest = longest, cap = cap, fits = fits,
    is_refundable = fits and not has(flags, FINAL), is_renewed = true, has_lost_id = has_lost_id,
  }, true)
  if is_own then id = string.rep('\0', CALLER_ID_LEN - OWN_ID_LEN) .. id end
  log = reopened(t)
end
plan.reply = usage_in(log, RENEW_HEAD_LEN + 1 + defaults * LIMIT_LEN, limits_end + 1) .. id
  .. pack('>I7I7I7I7B', before, now, t, log.last or 0, (target and APPLIED or 0) + (log.newest and 0 or EMPTY))
local is_single, plans, is_denied, flags = true, { plan }, false, nil
local reply, entry, stays, drops_one, merged, gone, longest, last, last_ttl
