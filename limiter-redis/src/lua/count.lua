-- The first half of the fast path's loop, after fast.lua: reads a log, and counts what the limits of operation `i` see of it.
-- In: `i`. Out: `is_common`; of the plan `newest`, `stays`, `drops_one`, `t`, `longest`, `ttl`, `last`, `last_ttl`; and the locals of the
-- file: the request's parts, the newest entry's parts, and `fits`, `first` (the time of the first entry), `counts` units since `from` in
-- the longest window, `before` (the longest window but the last limit's), and `facts`, `used`, `oldest` for the reply.
local key, request, total, age, sum, resolution, exact = keys[i], args[i], 0, 0, 0, nil, nil
local found = (is_single and call or redis.pcall)('ZRANGE', key, '0', '0', 'REV')
newest, longest, stays, drops_one = found[1], 0, nil, false
-- The first three bytes are the number of the default policy's limits, the form, and the kind.
local head, deadline, cost, code, id, window, max = parse('>I3I7I7I2I4I7I7', request)
local kind, limits_end = head % 256, #request
if head >= RESOLUTION * 256 then
  limits_end = limits_end - LIMIT_LEN
  resolution, exact = parse('>I7I7', request, limits_end + 1)
end
t, ttl, last, last_ttl = now, code, 0, 0
is_common = head < CALLER_ID * 256 and not since and not found.err
if is_common and newest then
  -- Only a short entry describes the whole log.
  is_common = #newest == SHORT_LEN or #newest == SHORT_COST_LEN
  if is_common then
    last, total, age, sum, last_ttl = parse('>i7I5I6I2I2', newest)
    last = last + TIME_BIAS
    is_common = last >= 0 and last < TIME_END and total < SHORT_TOTAL_END
    if last > t then t = last end
  end
end

local always, has_one_limit = kind == ATTEMPT or kind == RECORD, limits_end == OWN_HEAD_LEN + LIMIT_LEN
local fits, first, from, counts, before, facts, used, oldest = true, last - age, t, 0, 0, nil, 0, t
for place = OWN_HEAD_LEN + 1, is_common and limits_end or 0, LIMIT_LEN do
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
    if not always then
      -- The first entry's expiry suffices; if not, finding the right entry takes a search.
      is_common = used <= max and rest + cost <= max
    else
      -- The first entry goes for the new one, and the second becomes the first.
      member = is_single and has_one_limit and not resolution and t - first < window and call('ZRANGE', key, '1', '1')[1]
      is_common = member
      if member then
        oldest, total_then, units = read(member)
        rest, drops_one = total - total_then, true
        used = rest + units
        is_common = rest + 2 * cost <= max and used + cost >= max
      end
    end
  end
  if rest < 0 or not is_common then is_common = false break end
  if window > longest then longest, counts, from, stays = window, used, oldest, member end
end
local appends = kind ~= PEEK and (fits or always)
if appends and (now >= deadline or total + cost >= SHORT_TOTAL_END or t - from >= AGE_END) then is_common = false end
