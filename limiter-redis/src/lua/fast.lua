-- The fast path, after entry.lua: acquires and peeks with the limiter's own policy, one or several as one, in a log that grows or
-- slides. A single operation may also be an attempt or a record for which one entry goes, take over the newest entry (a resolution
-- without exact limits), or merge the entries that leave the exact limits. All else takes the general path in the files after this one.
-- Every command, table, function or number converted to text shows in the server's time, so there are few of them here.
local flags = args[count + 3]
local is_single, plans, is_common, is_denied = not flags, flags and {}, false, false
-- newest: the log's newest entry. reply: the reply. entry: the new entry.
-- stays: the first entry that stays if older ones are removed. drops_one: whether only the oldest is removed.
-- merged: what entries merge into. gone: the first of these entries, or the entry that is removed instead.
-- t, longest, ttl, last, last_ttl: decide on the key's expiry.
-- `plans` keeps them for each of several operations.
local newest, reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl
for i = 1, count do
  is_common, longest, stays, drops_one, merged, gone, entry = false, 0, nil, false, nil, nil, nil
  local key, request, total, age, sum, resolution, exact = keys[i], args[i], 0, 0, 0, nil, nil
  local found = (is_single and call or redis.pcall)('ZRANGE', key, '0', '0', 'REV')
  newest = found[1]
  -- The first three bytes are the number of the default policy's limits, the form, and the kind.
  local head, deadline, cost, code, id, window, max = parse('>I3I7I7I2I4I7I7', request)
  local kind, limits_end = head % 256, #request
  if head >= CALLER_ID * 256 or since or found.err then break end
  if head >= RESOLUTION * 256 then
    limits_end = limits_end - LIMIT_LEN
    resolution, exact = parse('>I7I7', request, limits_end + 1)
  end
  t, ttl, last, last_ttl = now, code, 0, 0
  if newest then
    -- Only a short entry describes the whole log.
    if #newest ~= SHORT_LEN and #newest ~= SHORT_COST_LEN then break end
    last, total, age, sum, last_ttl = parse('>i7I5I6I2I2', newest)
    last = last + TIME_BIAS
    if last < 0 or last >= TIME_END or total >= SHORT_TOTAL_END then break end
    if last > t then t = last end
  end

  local always, has_one_limit = kind == ATTEMPT or kind == RECORD, limits_end == OWN_HEAD_LEN + LIMIT_LEN
  -- `counts` units since `from` are in the longest window; `before` is the longest of the limits before the last.
  local fits, first, from, counts, before, facts, used, oldest = true, last - age, t, 0, 0, nil, 0, t
  is_common = true
  for place = OWN_HEAD_LEN + 1, limits_end, LIMIT_LEN do
    if place > OWN_HEAD_LEN + 1 then
      facts = (facts or '') .. pack('>I7I7I7', used, oldest, oldest)
      if window > before then before = window end
      window, max = parse('>I7I7', request, place)
    end
    -- The first entry that counts, if it is not the first of all or that is not known; and at most how much follows it.
    local member, rest, total_then, units
    if not newest or t - last >= window then
      used, oldest, rest = 0, t, 0
    elseif t - first < window and sum < SUM_MAX and sum + cost <= max + 1 then
      used, oldest, rest = sum, first, sum - 1
    else
      if t - first < window then
        oldest, total_then, units = read(call('ZRANGE', key, '0', '0')[1])
      elseif has_one_limit then
        -- Often the second.
        member = call('ZRANGE', key, '1', '1')[1]
        oldest, total_then, units = read(member)
        drops_one = t - oldest < window
      end
      if t - first >= window and not drops_one then
        member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - (TIME_BIAS - 1)), '+', 'LIMIT', '0', '1')[1]
        oldest, total_then, units = read(member)
      end
      rest = total - total_then
      used = rest + units
    end
    if used + cost > max then
      fits = false
      if always then
        -- The first entry goes for the new one, and the second becomes the first.
        member = is_single and has_one_limit and not resolution and t - first < window and call('ZRANGE', key, '1', '1')[1]
        if not member then is_common = false break end
        oldest, total_then, units = read(member)
        rest, drops_one = total - total_then, true
        used = rest + units
        is_common = rest + 2 * cost <= max and used + cost >= max
      else
        -- The first entry's expiry suffices; if not, finding the right entry takes a search.
        is_common = used <= max and rest + cost <= max
      end
    end
    if rest < 0 or not is_common then is_common = false break end
    if window > longest then longest, counts, from, stays = window, used, oldest, member end
  end
  local appends, units = kind ~= PEEK and (fits or always), cost
  if not is_common or appends and (now >= deadline or total + cost >= SHORT_TOTAL_END or t - from >= AGE_END) then is_common = false break end
  is_denied = is_denied or not fits and not is_single and byte(flags, i) % (2 * ADVISORY) < ADVISORY

  local empties = newest and counts == 0
  if appends and resolution and newest then
    if exact == 0 and counts > 0 and t - t % resolution <= last then
      -- The new entry takes over the newest.
      is_common = is_single and has_one_limit
      local taken = #newest == SHORT_LEN and 1 or parse('>I7', newest, SHORT_LEN + 1)
      gone, units = newest, math.min(cost + taken, MAX_COST)
      if taken == counts then from, oldest, empties = t, t, true end
    elseif exact > 0 and t > last and t - first >= exact then
      -- The two newest that have left the exact limits. If both have just left them, the newest that left them before.
      local bound = pack('>i7', t - exact - (TIME_BIAS - 1))
      local newer, older = unpack(call('ZREVRANGEBYLEX', key, '(' .. bound, '[\224', 'LIMIT', '0', '2'))
      local u, total_u = read(newer)
      local v, total_v, units_v = read(older or newer)
      local several = older and v > last - exact
      if several then
        bound = pack('>i7', last - exact - (TIME_BIAS - 1))
        older = call('ZREVRANGEBYLEX', key, '(' .. bound, '[\224', 'LIMIT', '0', '1')[1]
        v, total_v, units_v = read(older or newer)
      end
      if u > last - exact then
        local joins = older and v >= u - u % resolution and t - v < window
        is_common = is_single and fits and t - u >= before and #newer ~= LONG_LEN and #newer ~= LONG_COST_LEN and (joins or not several)
        if joins then
          gone, units_v = older, total_u - total_v + units_v
          merged = pack('>i7I2I7BI6I7', u - TIME_BIAS, LAP_START, total_u, MERGED, 0, math.min(units_v, MAX_COST))
          if total - total_u + units_v == counts then from, oldest = u, u end
        end
      end
    end
    if not is_common then break end
  end
  code = (fits and ADMITTED + REFUNDABLE or 0) + (appends and APPENDED or 0) + (newest and 0 or EMPTY)
  reply = pack('>I7I7I7I7I7B', used, oldest, oldest, now, last, code)
  if facts then reply = facts .. reply end
  if is_single and not appends then return reply end
  if appends then
    if counts == 0 then total = 0 end
    if not fits then id = id + DENIED_ID end
    sum = counts + cost
    if sum > SUM_MAX then sum = SUM_MAX end
    entry = pack('>i7I5I6I2I2I4', t - TIME_BIAS, total + cost, t - from, sum, ttl, id)
    if units > 1 then entry = entry .. pack('>I7', units) end
    if empties then stays, drops_one, gone = entry, false, nil end
  end
  if plans then
    plans[i] = { reply = reply, entry = entry, stays = stays, drops_one = drops_one, t = t, longest = longest, ttl = ttl, last = last,
      last_ttl = last_ttl }
  end
end
