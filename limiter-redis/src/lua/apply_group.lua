
-- Decides on acquires that are alike, one after another at one time, where only admitted requests count. The script is head.lua,
-- prelude.lua, operation.lua and this file.
--
-- ARGV[1]: the request of the first, with the store's id; see apply_fast.lua. ARGV[3]: microseconds since the first attempt, if
-- this is a repetition, or ''. ARGV[4]: the last 4 bytes of each one's id.
--
-- The entries of earlier attempts come first, and are repeated. Of the others, some fit and are appended. The rest are denied.
--
-- Returns a string: a code (1 byte), which is EMPTY, 0, or LATE alone; then 7 bytes each: time, newest before, and how many fit;
-- for each limit used, oldest and blocker, before the others were appended and afterwards; and, if any was repeated, the time of
-- each one's entry, TIME_END for those that were not.
local since, ids = ARGV[3], ARGV[4]
local prefix, ttl = sub(id, 1, 2), unpack_struct('>I2', id)

-- The entries of earlier attempts. Each attempt appended what fitted then.
local times = ''
if since ~= '' and last >= 0 then
  local places, others = {}, ''
  for i = 1, #ids / 4 do places[without_bit(prefix .. sub(ids, 4 * i - 3, 4 * i))] = i end
  local found = find_earlier(since, places, #ids / 4)
  if next(found) then
    for i = 1, #ids / 4 do
      times = times .. pack('>I7', found[i] or $TIME_END)
      if not found[i] then others = others .. sub(ids, 4 * i - 3, 4 * i) end
    end
    ids = others
  end
end

-- How many of the others fit.
local others = #ids / 4
local fit = others
for i = 1, #limits do
  local used, max = limits[i].used, limits[i].max
  -- The quotient may be rounded up.
  while fit > 0 and used + fit * cost > max do
    fit = math.min(fit - 1, math.max(0, math.floor((max - used) / cost)))
  end
end
if fit > 0 and now >= deadline then return string.char($LATE) end

local more, facts = fit * cost, ''
for i = 1, #limits do
  local before = usage(limits[i], 0, true)
  facts = facts .. before .. (fit > 0 and fit < others and usage(limits[i], more, true) or before)
end
local reply = pack('>BI7I7I7', last < 0 and $EMPTY or 0, t, math.max(last, 0), fit)

if fit > 0 then
  local capped = make_room(more)
  local callers, entries, step, units = tag % 16 >= 8 and count_ids() or 0, fit, cost, cost
  --~ local all = merge(capped, callers, more)
  --~ if joins then entries, step, units = 1, more, all end
  local entry_tag, suffix = (units > 1 and 4 or 0) + (callers > 0 and 8 or 0) + held, units > 1 and pack('>I7', units)
  local short = can_be_short(callers, low + more)
  -- The age and the sum are those of the newest entry, because no other one is asked for them.
  local head, rest = pack('>i7', t - $TIME_BIAS), pack('>I6I2I2', t - origin, math.min(whole + more, $SUM_MAX), ttl)
  local numbers, add = { unpack_struct('>' .. string.rep('I4', entries), ids) }, { key }
  for i = 1, entries do
    local entry
    low = low + step
    if short then
      entry = pack('c7>I5c10I4', head, low, rest, numbers[i])
    else
      if low >= $LOW_END then high, low = carry(high, low) end
      entry = long(t, high, low, entry_tag, prefix .. sub(ids, 4 * i - 3, 4 * i))
    end
    add[2 * i], add[2 * i + 1] = '0', suffix and entry .. suffix or entry
  end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  call('ZADD', unpack(add))
  finish(add[3], capped, callers, 0, ttl)
  --~ finish_merge(add[2 * entries + 1])
end
--~ if merged then
--~   -- The usage of each limit before, which is half of what it has, and now.
--~   local before, half = facts, #facts / #limits / 2
--~   facts = ''
--~   for i = 1, #limits do
--~     facts = facts .. sub(before, 2 * half * (i - 1) + 1, half * (2 * i - 1)) .. usage(limits[i], 0, true)
--~   end
--~ end
return reply .. facts .. times
