
-- The general form of an operation, after head.lua, apply_fast.lua, prelude.lua and operation.lua.
local fits = true
for i = 1, #limits do
  if limits[i].used + cost > limits[i].max then fits = false end
end

-- The time of the entry that an earlier attempt of this operation appended, and whether that was admitted.
local at, admitted = nil, fits
if #id == $CALLER_ID_LEN then
  local index = tag % 16 >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + $TIME_BIAS
  if appended and t - appended < valid then
    local entry, entry_tag = find_entry(appended, id)
    if entry then at, admitted = appended, entry_tag % 2 == 0 end
  end
  if appended and not at then stale = appended end
elseif ARGV[3] and last >= 0 then
  local found, was_admitted = find_earlier(ARGV[3], { [without_bit(id)] = 1 }, 1)
  if found[1] then at, admitted = found[1], was_admitted end
end

local appends = not at and (kind == $ATTEMPT or kind == $RECORD or (fits and kind == $ACQUIRE))
if appends and now >= deadline then return string.char($LATE) end
local blocks, facts = kind ~= $RECORD and (at or not fits), ''
for i = 1, #limits do facts = facts .. usage(limits[i], appends and cost or 0, blocks) end

if appends then
  local entry, merged = append(cost, fits)
  last = t
  if merged then
    recount(entry)
    facts = ''
    for i = 1, #limits do facts = facts .. usage(limits[i], 0, blocks) end
  end
end

local code = (admitted and $ADMITTED or 0) + (appends and $APPENDED or at and $REPEATED or 0) + (last < 0 and $EMPTY or 0)
return pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t) .. facts
