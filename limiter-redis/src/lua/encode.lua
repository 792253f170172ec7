-- The second half of the fast path's loop, after count.lua, if that finds the operation common: encodes what it replies and writes.
-- In: what count.lua found. Out: `reply`, `entry`, `merged`, `gone`; and `stays`, `drops_one` if everything goes; `is_common`, false if
-- a merger takes the general path; `is_denied`, true if the operation denies others; and its plan in `plans`, if there are several.
is_denied = is_denied or not fits and not is_single and byte(flags, i) % (2 * ADVISORY) < ADVISORY
merged, gone, entry = nil, nil, nil
local empties, units = newest and counts == 0, cost
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
end
code = (fits and ADMITTED + REFUNDABLE or 0) + (appends and APPENDED or 0) + (newest and 0 or EMPTY)
reply = pack('>I7I7I7I7I7B', used, oldest, oldest, now, last, code)
if facts then reply = facts .. reply end
if appends and is_common then
  if counts == 0 then total = 0 end
  if not fits then id = id + DENIED_ID end
  sum = counts + cost
  if sum > SUM_MAX then sum = SUM_MAX end
  entry = pack('>i7I5I6I2I2I4', t - TIME_BIAS, total + cost, t - from, sum, ttl, id)
  if units > 1 then entry = entry .. pack('>I7', units) end
  if empties then stays, drops_one, gone = entry, false, nil end
elseif is_single and is_common then
  return reply
end
if plans then
  plans[i] = { reply = reply, entry = entry, stays = stays, drops_one = drops_one, t = t, longest = longest, ttl = ttl, last = last,
    last_ttl = last_ttl }
end
