-- The fast path, after entry.lua: common operations with the limiter's own policy. They are
--   acquires, admitted or denied, and peeks, with any number of limits, in a log that grows or slides;
--   attempts and records that do not fit, with one limit, when one entry goes for each that comes;
--   with a resolution: an entry that takes over the newest one, or one that merges as it leaves the exact limits.
-- All else takes the general path, operation.lua. The newest entry must be short: it then describes the whole log.
--
-- Every command, table, function or number converted to text shows in the server's time, so there are few of them here.

-- Decides by reads alone. `alone`: it is the only operation. Returns nothing if it is none of the above. Otherwise the verdict and
-- the reply, and if the operation appends, what `finish_fast` needs.
local function decide_fast(key, request, newest, alone)
  local kind, form, defaults, deadline, cost, ttl, id, window, max = parse('>BBBI7I7I2I4I7I7', request)
  if form >= CALLER_ID or defaults > 0 or since then return end
  local limits_end, resolution, exact = #request, nil, nil
  if form == RESOLUTION then
    limits_end = limits_end - LIMIT_LEN
    resolution, exact = parse('>I7I7', request, limits_end + 1)
  end
  -- Of the log: the newest entry's time, total and ttl code, the first entry's time, and the sum of all costs.
  local t, last, total, last_ttl, first, sum = now, 0, 0, 0, now, 0
  if newest then
    local length, age = #newest, nil
    if length ~= SHORT_LEN and length ~= SHORT_COST_LEN then return end
    last, total, age, sum, last_ttl = parse('>i7I5I6I2I2', newest)
    last = last + TIME_BIAS
    if last < 0 or last >= TIME_END or total >= SHORT_TOTAL_END then return end
    if last > t then t = last end
    first = last - age
  end

  local always, is_single = kind == ATTEMPT or kind == RECORD, limits_end == OWN_HEAD_LEN + LIMIT_LEN
  local fits, facts, used, oldest, earlier = true, nil, nil, nil, 0
  -- Of the longest window: what counts in it, since when, and the first entry that stays, if others go.
  local longest, counts, from, stays = 0, 0, t, nil
  for place = OWN_HEAD_LEN + 1, limits_end, LIMIT_LEN do
    if place > OWN_HEAD_LEN + 1 then
      facts = (facts or '') .. pack('>I7I7I7', used, oldest, oldest)
      earlier = math.max(earlier, window)
      window, max = parse('>I7I7', request, place)
    end
    -- The first entry that counts, and the sum of those after it.
    local member, rest, total_then, units
    if not newest or t - last >= window then
      used, oldest, rest = 0, t, 0
    elseif t - first < window and sum < SUM_MAX and sum + cost <= max + 1 then
      -- At least one unit is the first entry's.
      used, oldest, rest = sum, first, sum - 1
    else
      if t - first < window then
        oldest, total_then, units = read(call('ZRANGE', key, '0', '0')[1])
      else
        -- Often it is the second of all.
        if is_single then
          member = call('ZRANGE', key, '1', '1')[1]
          oldest, total_then, units = read(member)
        end
        if not is_single or t - oldest >= window then
          member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - (TIME_BIAS - 1)), '+', 'LIMIT', '0', '1')[1]
          oldest, total_then, units = read(member)
        end
      end
      if total_then > total then return end
      rest = total - total_then
      used = rest + units
    end
    if used + cost > max then
      fits = false
      if not always then
        -- Unless the first entry's expiry suffices, finding the one that does takes a search.
        if used > max or rest + cost > max then return end
      else
        -- The first entry goes for the new one, and the second becomes the first.
        member = alone and is_single and not resolution and t - first < window and call('ZRANGE', key, '1', '1')[1]
        if not member then return end
        oldest, total_then, units = read(member)
        rest = total - total_then
        used = rest + units
        if rest < 0 or rest + 2 * cost > max or used + cost < max then return end
      end
    end
    if window > longest then longest, counts, from, stays = window, used, oldest, member end
  end

  local appends = kind ~= PEEK and (fits or always)
  if appends and (now >= deadline or total + cost >= SHORT_TOTAL_END or t - from >= AGE_END) then return end
  -- Whether the new entry takes over the newest; and the two entries that merge, with what they become.
  local joins, merged, newer, older = false, nil, nil, nil
  if appends and resolution and newest then
    if exact == 0 then
      joins = counts > 0 and t - t % resolution <= last
      if joins and not (alone and is_single) then return end
    elseif t > last and t - first >= exact then
      newer, older = unpack(call('ZREVRANGEBYLEX', key, '(' .. pack('>i7', t - exact - (TIME_BIAS - 1)), '[\224', 'LIMIT', '0', '2'))
      local u, total_u, units_u = read(newer)
      if u > last - exact then
        -- It has just left the exact limits.
        if not alone or not fits or t - u < earlier or byte(newer, 8) >= LONG_BYTE then return end
        local v, total_v, units_v = read(older or newer)
        if older and v > last - exact then return end
        if older and v >= u - u % resolution and t - v < window then
          merged = pack('>i7I2I7BI6I7', u - TIME_BIAS, LAP_START, total_u, MERGED, 0, math.min(units_u + units_v, MAX_COST))
          if total - total_v + units_v == counts then from, oldest = u, u end
        end
      end
    end
  end
  -- What goes: older entries than `drop`, and those that merge.
  local drop, gone, units, empties = stays, merged and older, cost, newest and counts == 0
  if joins then
    local taken = #newest == SHORT_LEN and 1 or parse('>I7', newest, SHORT_LEN + 1)
    gone, units = newest, math.min(cost + taken, MAX_COST)
    if taken == counts then from, oldest, empties = t, t, true end
  end
  local code = (fits and ADMITTED + REFUNDABLE or 0) + (appends and APPENDED or 0) + (newest and 0 or EMPTY)
  local reply = (facts or '') .. pack('>I7I7I7I7I7B', used, oldest, oldest, now, last, code)
  if not appends then return fits, reply end
  if counts == 0 then total = 0 end
  if not fits then id = id + DENIED_ID end
  local entry = pack('>i7I5I6I2I2I4', t - TIME_BIAS, total + cost, t - from, math.min(counts + cost, SUM_MAX), ttl, id)
  if units > 1 then entry = entry .. pack('>I7', units) end
  if empties then drop, gone = entry, nil end
  return fits, reply, entry, drop, merged, gone, t, longest, ttl, last, last_ttl
end

-- Appends. Takes what `decide_fast` returns, and returns the reply, if there is one.
local function finish_fast(key, _, reply, entry, drop, merged, gone, t, longest, ttl, last, last_ttl)
  if entry then
    -- Redis checks its memory limit before the first write only, so entries are added before others go.
    if merged then call('ZADD', key, '0', entry, '0', merged) else call('ZADD', key, '0', entry) end
    if drop then call('ZREMRANGEBYLEX', key, '[\224', '(' .. drop) end
    if merged then call('ZREMRANGEBYLEX', key, '[' .. gone, '(' .. merged) elseif gone then call('ZREM', key, gone) end
    set_expiry(key, t, longest, ttl, last, last_ttl)
  end
  return reply
end

if not ARGV[#KEYS + 3] then
  local reply = finish_fast(KEYS[1], decide_fast(KEYS[1], ARGV[1], call('ZRANGE', KEYS[1], '0', '0', 'REV')[1], true))
  if reply then return reply end
end
