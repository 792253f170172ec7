
-- Appends one entry of the operation, after operation.lua. Returns it.
local function append(cost, admitted)
  local capped = make_room(cost)
  high, low = carry(high, low + cost)
  local own, ids, sum = #id == $OWN_ID_LEN, tag % 16 >= 8 and count_ids() or 0, math.min(whole + cost, $SUM_MAX)
  --~ cost = merge(capped, ids, cost)
  local entry
  if own and can_be_short(ids, low) then
    entry = pack('>i7I5I6I2', t - $TIME_BIAS, low, t - origin, sum)
    entry = entry .. (admitted and id or sub(id, 1, 2) .. string.char(byte(id, 3) + $DENIED_BYTE) .. sub(id, 4))
  else
    local entry_tag = (admitted and 0 or 1) + (cost > 1 and 4 or 0) + held
    if not own then
      entry_tag, ids = entry_tag + 10, ids + 1
    elseif ids > 0 then
      entry_tag = entry_tag + 8
    end
    entry = long(t, high, low, entry_tag, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- Redis checks its memory limit before the first write only, so an entry is added before another one is removed.
  if own then
    call('ZADD', key, '0', entry)
  else
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  end
  -- A new caller's id moves all ranks up by one. It leaves no room for a ttl code.
  finish(entry, capped, ids, own and 0 or 1, own and unpack_struct('>I2', id) or 0)
  --~ finish_merge(entry)
  return entry
end
