
-- The general form of an operation, after head.lua, apply_fast.lua, prelude.lua and operation.lua.
local fits = true
for i = 1, #limits do
  if limits[i].used + cost > limits[i].max then fits = false end
end

-- How long an id is valid, and the time of the entry that an earlier attempt of this operation appended, and whether that was admitted.
local valid, at, admitted = longest, nil, fits
--~ valid = math.min(longest, $KEPT)
if #id == $CALLER_ID_LEN then
  local index = tag % 16 >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + $TIME_BIAS
  if appended and t - appended < valid then
    local entry, entry_tag = find_entry(appended, id)
    if entry then at, admitted = appended, entry_tag % 2 == 0 end
  end
  --~ if appended and not at then lost = appended end
elseif ARGV[3] and last >= 0 then
  local found, was_admitted = find_earlier(ARGV[3])
  if found then at, admitted = found, was_admitted end
end

local appends = not at and (kind == $ATTEMPT or kind == $RECORD or (fits and kind == $ACQUIRE))
if appends and now >= deadline then return string.char($LATE) end
local blocks, facts = kind ~= $RECORD and (at or not fits), ''
for i = 1, #limits do facts = facts .. usage(limits[i], appends and cost or 0, blocks) end

if appends then
  local capped = make_room(cost)
  high, low = carry(high, low + cost)
  local own, ids, units = #id == $OWN_ID_LEN, tag % 16 >= 8 and count_ids() or 0, cost
  --~ units = merge(capped, ids, cost)
  local entry
  if own and can_be_short(ids, low) then
    entry = pack('>i7I5I6I2', t - $TIME_BIAS, low, t - origin, math.min(whole + cost, $SUM_MAX))
    entry = entry .. (fits and id or sub(id, 1, 2) .. string.char(byte(id, 3) + $DENIED_BYTE) .. sub(id, 4))
  else
    local entry_tag = (fits and 0 or 1) + (units > 1 and 4 or 0) + (ids > 0 and 8 or 0) + held
    if not own then entry_tag, ids = entry_tag - entry_tag % 16 + entry_tag % 8 + 10, ids + 1 end
    entry = long(t, high, low, entry_tag, id)
  end
  if units > 1 then entry = entry .. pack('>I7', units) end
  -- Redis checks its memory limit before the first write only, so an entry is added before another one is removed.
  if own then
    call('ZADD', key, '0', entry)
  else
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  end
  -- A new caller's id moves all ranks up by one. It leaves no room for a ttl code.
  finish(entry, capped, ids, own and 0 or 1, own and unpack_struct('>I2', id) or 0)
  last = t
  --~ finish_merge(entry)
  --~ if merged then
  --~   facts = ''
  --~   for i = 1, #limits do facts = facts .. usage(limits[i], 0, blocks) end
  --~ end
end

local code = (admitted and $ADMITTED or 0) + (appends and $APPENDED or at and $REPEATED or 0) + (last < 0 and $EMPTY or 0)
return pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t) .. facts
