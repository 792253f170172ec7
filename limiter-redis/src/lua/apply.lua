
-- The general form of an operation, after head.lua, apply_fast.lua, prelude.lua and operation.lua.
local fits = true
for i = 1, #limits do
  if limits[i].used + cost > limits[i].max then fits = false end
end

-- The time of the entry that an earlier attempt of this operation appended, and whether that was admitted.
local at, admitted = nil, fits
if #id == $CALLER_ID_LEN then
  local index = tag >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + $TIME_BIAS
  if appended and t - appended < longest then
    local entry, entry_tag = find_entry(appended, id)
    if entry then at, admitted = appended, entry_tag % 2 == 0 end
  end
elseif ARGV[3] and last >= 0 then
  local found, was_admitted = find_earlier(ARGV[3], { [id] = 1 }, 1)
  if found[1] then at, admitted = found[1], was_admitted end
end

local append = not at and (kind == $ATTEMPT or kind == $RECORD or (fits and kind == $ACQUIRE))
if append and now >= deadline then return string.char($LATE) end
local facts = ''
for i = 1, #limits do
  facts = facts .. usage(limits[i], append and cost or 0, kind ~= $RECORD and (at or not fits))
end

if append then
  local kept = make_room(cost)
  high, low = carry(high, low + cost)
  local ids = tag >= 8 and count_ids() or 0
  local entry
  if #id == $OWN_ID_LEN and can_be_short(ids, low) then
    entry = pack('>i7I5I6I2', t - $TIME_BIAS, low, t - origin, math.min(whole + cost, $SUM_MAX))
    entry = entry .. (fits and id or sub(id, 1, 2) .. string.char(byte(id, 3) + $DENIED_BYTE) .. sub(id, 4))
  else
    local entry_tag = (fits and 0 or 1) + (cost > 1 and 4 or 0) + (ids > 0 and 8 or 0)
    if #id == $CALLER_ID_LEN then entry_tag, ids = entry_tag % 8 + 10, ids + 1 end
    entry = long(t, high, low, entry_tag, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  if #id == $CALLER_ID_LEN then
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  else
    call('ZADD', key, '0', entry)
  end
  -- A new caller's id moves all ranks up by one. It leaves no room for a ttl code.
  local own = #id == $OWN_ID_LEN
  finish(entry, kept, ids, own and 0 or 1, own and unpack_struct('>I2', id) or 0)
  last = t
end

local code = (admitted and $ADMITTED or 0) + (append and $APPENDED or at and $REPEATED or 0) + (last < 0 and $EMPTY or 0)
return pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t) .. facts
