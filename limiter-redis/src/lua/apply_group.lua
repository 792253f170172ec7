
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

local more, before, after = fit * cost, {}, {}
for i = 1, #limits do
  before[i] = usage(limits[i], 0, true)
  after[i] = fit > 0 and fit < others and usage(limits[i], more, true) or before[i]
end
local reply = pack('>BI7I7I7', last < 0 and $EMPTY or 0, t, math.max(last, 0), fit)

if fit > 0 then
  local entry, merged
  if joins then
    -- All merge into one entry.
    id = prefix .. sub(ids, 1, 4)
    entry, merged = append(more, true)
  else
    local capped = make_room(more)
    local callers, held, gone = tag % 16 >= 8 and count_ids() or 0, marks(), {}
    if merge then
      local _
      _, held, merged = merge(gone, capped, callers, more)
    end
    local entry_tag, suffix = (cost > 1 and 4 or 0) + (callers > 0 and 8 or 0) + held, cost > 1 and pack('>I7', cost)
    local short = can_be_short(callers, low + more, held)
    -- The age and the sum are those of the newest entry, because no other one is asked for them.
    local head, rest = pack('>i7', t - $TIME_BIAS), pack('>I6I2I2', t - origin, math.min(whole + more, $SUM_MAX), ttl)
    local numbers, add = { unpack_struct('>' .. string.rep('I4', fit), ids) }, { key }
    for i = 1, fit do
      low = low + cost
      if short then
        entry = pack('c7>I5c10I4', head, low, rest, numbers[i])
      else
        if low >= $LOW_END then high, low = carry(high, low) end
        entry = long(t, high, low, entry_tag, prefix .. sub(ids, 4 * i - 3, 4 * i))
      end
      if suffix then entry = entry .. suffix end
      add[2 * i], add[2 * i + 1] = '0', entry
    end
    -- Redis checks its memory limit before the first write only, so the append comes first.
    call('ZADD', unpack(add))
    finish(add[3], capped, callers, 0, ttl)
    remove(gone)
  end
  if merged then
    recount(entry)
    for i = 1, #limits do after[i] = usage(limits[i], 0, true) end
  end
end
local facts = ''
for i = 1, #limits do facts = facts .. before[i] .. after[i] end
return reply .. facts .. times
