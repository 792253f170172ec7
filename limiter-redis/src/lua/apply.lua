
-- The general form of an operation, after head.lua, load.lua, apply_fast.lua, prelude.lua, operation.lua
-- and merge.lua.
-- How long an id is valid, and the time and tag of the entry that an earlier attempt of this operation appended.
local fits, valid, at, earlier = verdict ~= 1, windows and math.min(longest, $TEN_MINUTES) or longest
if #id == $CALLER_ID_LEN then
  local appended = tag % 16 >= 8 and time_of_id(id)
  if appended and t - appended < valid then
    local entry, entry_tag = find_entry(appended, id)
    if entry then at, earlier = appended, entry_tag end
  end
elseif since and last >= 0 then
  at, earlier = find_earlier(since)
end
if at then verdict = earlier % 2 + earlier - earlier % $FINAL end

local appends = not at and (kind == $ATTEMPT or kind == $RECORD or (fits and kind == $ACQUIRE))
local blocks, facts = kind ~= $RECORD and (at or not fits), ''
for i = 1, #limits do facts = facts .. usage(limits[i], appends and cost or 0, blocks) end

if appends then
  local capped = make_room(cost)
  high, low = carry(high, low + cost)
  local own, ids, units = #id == $OWN_ID_LEN, tag % 16 >= 8 and count_ids() or 0, cost
  if pause and not pause(fits) then return end
  if windows then units = math.min(cost + merge(capped), $MAX_COST) end
  local entry
  if own and can_be_short(ids, low) then
    entry = pack('>i7I5I6I2', t - $TIME_BIAS, low, t - origin, math.min(whole + cost, $SUM_MAX))
    local bit = verdict == 1 and $DENIED_BYTE or verdict == $FINAL and $FINAL_BYTE or 0
    entry = entry .. sub(id, 1, 2) .. string.char(byte(id, 3) + bit) .. sub(id, 4)
  else
    local entry_tag = verdict + (units > 1 and 4 or 0) + (ids > 0 and 8 or 0) + marks
    if not own then entry_tag = entry_tag - entry_tag % 16 + entry_tag % 8 + 10 end
    entry = long(t, high, low, entry_tag, id)
  end
  if units > 1 then entry = entry .. pack('>I7', units) end
  -- Redis checks its memory limit before the first write only, so an entry is added before another one is removed.
  -- A new caller's id moves all ranks up by one.
  local moved = 0
  if own then
    call('ZADD', key, '0', entry)
  else
    moved = call('ZADD', key, '0', entry, t - $TIME_BIAS, 'i' .. id) - 1
  end
  ids = ids + moved
  -- A caller's id leaves no room for a ttl code.
  local ttl = own and unpack_struct('>I2', id) or 0
  local has_same = newest and ttl_of(newest, tag) == ttl and expiry(last, ttl) == expiry(t, ttl)
  if newest then drop_unseen(entry, capped, ids, moved) end
  last = t
  if joined then call('ZREM', key, joined) end
  if ids > 0 then prune() end
  if merged then
    -- The limits count as much as before, but other entries.
    read_log(t, entry)
    facts = ''
    for i = 1, #limits do
      local limit = limits[i]
      limit.used, limit.oldest, limit.rest = count(limit.window)
      facts = facts .. usage(limit, 0, blocks)
    end
  end
  expire(ttl, has_same)
end

local code = verdict == 0 and $ADMITTED + $REFUNDABLE or verdict == $FINAL and $ADMITTED or 0
code = code + (appends and $APPENDED or at and $REPEATED or 0) + (last < 0 and $EMPTY or 0)
return pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t) .. facts
