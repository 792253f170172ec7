-- The fast path, after entry.lua: common operations with the limiter's own policy. They are
--   acquires, admitted or denied, and peeks, with any number of limits, in a log that grows or slides;
--   attempts and records that do not fit, with one limit, when one entry goes for each that comes;
--   with a resolution: an entry that takes over the newest one, or one that merges as it leaves the exact limits;
--   several of these operations as one, except the last three.
-- All else takes the general path in the files after this one. The newest entry must be short: it then describes the whole log.
--
-- Every command, table, function or number converted to text shows in the server's time, so there are few of them here.
local flags = args[count + 3]
local is_single, plans, is_common, is_denied = not flags, flags and {}, false, false
-- Of an operation: the newest entry of its log; its reply; its entry, if it appends; the first entry that stays, if older ones go; what entries merge into, and the
-- first of these; and all that decides on the key's expiry.
local newest, reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl
for i = 1, count do
  is_common = false
  local key, request = keys[i], args[i]
  local found = (is_single and call or redis.pcall)('ZRANGE', key, '0', '0', 'REV')
  newest = found[1]
  local form, deadline, cost, ttl_code, id, window, max = parse('>I3I7I7I2I4I7I7', request)
  if form >= 2*256 or since then break end
  local kind = form % 256
  local limits_end, resolution, exact = #request, nil, nil
  if form >= 256 then
    limits_end = limits_end - LIMIT_LEN
    resolution, exact = parse('>I7I7', request, limits_end + 1)
  end
  local total, first, sum = 0, now, 0
  t, last, ttl, last_ttl = now, 0, ttl_code, 0
  if newest then
    local age
    if #newest ~= SHORT_LEN and #newest ~= SHORT_COST_LEN then break end
    last, total, age, sum, last_ttl = parse('>i7I5I6I2I2', newest)
    last = last + TIME_BIAS
    if last < 0 or last >= TIME_END or total >= SHORT_TOTAL_END then break end
    if last > t then t = last end
    first = last - age
  elseif found.err then
    break
  end

  local always, has_one_limit = kind == ATTEMPT or kind == RECORD, limits_end == OWN_HEAD_LEN + LIMIT_LEN
  local fits, facts, used, oldest, before = true, nil, 0, t, 0
  -- Of the longest window: what counts in it, and since when.
  local counts, from = 0, t
  longest, stays, drops_one, merged, gone, is_common = 0, nil, false, nil, nil, true
  for place = OWN_HEAD_LEN + 1, limits_end, LIMIT_LEN do
    if place > OWN_HEAD_LEN + 1 then
      facts = (facts or '') .. pack('>I7I7I7', used, oldest, oldest)
      if window > before then before = window end
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
        if has_one_limit then
          member = call('ZRANGE', key, '1', '1')[1]
          oldest, total_then, units = read(member)
          drops_one = t - oldest < window
        end
        if not drops_one then
          member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - (TIME_BIAS - 1)), '+', 'LIMIT', '0', '1')[1]
          oldest, total_then, units = read(member)
        end
      end
      rest = total - total_then
      used = rest + units
      if rest < 0 then is_common = false break end
    end
    if used + cost > max then
      fits = false
      if not always then
        -- Unless the first entry's expiry suffices, finding the one that does takes a search.
        if used > max or rest + cost > max then is_common = false break end
      else
        -- The first entry goes for the new one, and the second becomes the first.
        member = is_single and has_one_limit and not resolution and t - first < window and call('ZRANGE', key, '1', '1')[1]
        if not member then is_common = false break end
        oldest, total_then, units = read(member)
        rest, drops_one = total - total_then, true
        used = rest + units
        if rest < 0 or rest + 2 * cost > max or used + cost < max then is_common = false break end
      end
    end
    if window > longest then longest, counts, from, stays = window, used, oldest, member end
  end
  if not is_common then break end
  is_denied = is_denied or not fits and not is_single and byte(flags, i) % (2 * ADVISORY) < ADVISORY

  local appends, takes_over = kind ~= PEEK and (fits or always), false
  if appends then
    is_common = now < deadline and total + cost < SHORT_TOTAL_END and t - from < AGE_END
    if resolution and newest and is_common then
      if exact == 0 then
        takes_over = counts > 0 and t - t % resolution <= last
        is_common = is_single and has_one_limit or not takes_over
      elseif t > last and t - first >= exact then
        -- The two newest that have left the exact limits.
        local bound = '(' .. pack('>i7', t - exact - (TIME_BIAS - 1))
        local newer, older = unpack(call('ZREVRANGEBYLEX', key, bound, '[\224', 'LIMIT', '0', '2'))
        local u, total_u, units_u = read(newer)
        local v, total_v, units_v = read(older or newer)
        if u > last - exact then
          -- The newer has just left them, and no other limit counts it.
          is_common = is_single and fits and t - u >= before and (#newer == SHORT_LEN or #newer == SHORT_COST_LEN) and not (older and v > last - exact)
          if older and v >= u - u % resolution and t - v < window then
            merged = pack('>i7I2I7BI6I7', u - TIME_BIAS, LAP_START, total_u, MERGED, 0, math.min(units_u + units_v, MAX_COST))
            gone = older
            if total - total_v + units_v == counts then from, oldest = u, u end
          end
        end
      end
    end
    if not is_common then break end
  end
  local code = (fits and ADMITTED + REFUNDABLE or 0) + (appends and APPENDED or 0) + (newest and 0 or EMPTY)
  entry = nil
  if appends then
    local units, alone = cost, newest and counts == 0
    if takes_over then
      gone = newest
      local taken = #newest == SHORT_LEN and 1 or parse('>I7', newest, SHORT_LEN + 1)
      units = math.min(cost + taken, MAX_COST)
      if taken == counts then from, oldest, alone = t, t, true end
    end
    if counts == 0 then total = 0 end
    if not fits then id = id + DENIED_ID end
    sum = counts + cost
    if sum > SUM_MAX then sum = SUM_MAX end
    entry = pack('>i7I5I6I2I2I4', t - TIME_BIAS, total + cost, t - from, sum, ttl, id)
    if units > 1 then entry = entry .. pack('>I7', units) end
    if alone then stays, drops_one, gone = entry, false, nil end
  end
  reply = pack('>I7I7I7I7I7B', used, oldest, oldest, now, last, code)
  if facts then reply = facts .. reply end
  if plans then
    plans[i] = { reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl }
  elseif not appends then
    return reply
  end
end
if is_common then
  local replies = {}
  for i = 1, count do
    local key = keys[i]
    if plans then reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl = unpack(plans[i], 1, 11) end
    if is_denied and entry and byte(flags, i) < KEPT then
      -- Another one denies: the same as a peek.
      reply, entry = sub(reply, 1, -2) .. string.char(byte(reply, -1) - APPENDED), nil
    end
    if entry then
      -- Redis checks its memory limit before the first write only, so entries are added before others go.
      if merged then call('ZADD', key, '0', entry, '0', merged) else call('ZADD', key, '0', entry) end
      if drops_one then call('ZREMRANGEBYRANK', key, '0', '0') elseif stays then call('ZREMRANGEBYLEX', key, '[\224', '(' .. stays) end
      if merged then call('ZREMRANGEBYLEX', key, '[' .. gone, '(' .. merged) elseif gone then call('ZREM', key, gone) end
      if given then
        call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + GIVEN_TIME_GRACE_MS)
      else
        local cell = 2 ^ ((ttl - ttl % TTL_CELLS) / TTL_CELLS)
        if ttl ~= last_ttl or last - last % cell < t - t % cell then
          call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % TTL_CELLS + 1) * cell) / 1000) + 1)
        end
      end
    end
    if not plans then return reply end
    replies[i] = reply
  end
  return replies
end
