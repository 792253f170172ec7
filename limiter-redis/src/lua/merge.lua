
-- Merging, after windows.lua, prelude.lua and operation.lua.
--
-- The windows of the limits divide the log at `t` into segments, so that each limit counts all entries of a segment or none. In one
-- cell of its resolution, the entries of a segment merge that are not kept, from the first trigger on, and the one before it. A
-- trigger is the new entry, an entry that left a window since the newest one was appended, or one that ceased to be kept. What
-- follows a trigger in its cell is a trigger, too, or merges with it and so becomes one.
--
-- A merged entry is long. It has the time and the running total of its newest part, and the number 0 in its id.

-- Whether new entries merge with others of their time, whether entries merged, and the time of an older entry with the operation's id.
local joins, merged, lost = false, false
-- The members that go once the new entry is there.
local gone = {}

-- Whether an entry is kept while it is younger than ten minutes.
local function is_marked(member, tag)
  return tag % 4 >= 2 or not is_short(member) and byte(member, 20) >= $DENIED_BYTE
end

local function is_kept(member, at, tag) return t - at < $KEPT and is_marked(member, tag) end

local function time_of(member) return unpack_struct('>i7', member) + $TIME_BIAS end

local function member_at(rank) return call('ZRANGE', key, rank, rank)[1] end

-- The rank of the first entry from a time on.
local function rank_of(at) return call('ZLEXCOUNT', key, '-', '(' .. from_time(at)) end

-- Whether the new entry is kept, whether the log may hold marked entries, and in how many cells from `t` on it may hold others
-- that are younger than ten minutes; see `held`.
local keeps = #id == $CALLER_ID_LEN or byte(id, 3) >= $DENIED_BYTE
local holds = math.floor(tag / 16) % 4 > 0 or tag % 16 >= 8
local others = 0
if last >= 0 then
  others = tag >= 16 and is_marked(newest, tag) and math.floor(tag / 64) or $KEPT_CELLS
  others = math.max(0, others - math.floor(t / $KEPT_CELL) + math.floor(last / $KEPT_CELL))
end
joins = finest > 0 and not keeps

local function remove(members)
  for from = 1, #members, $READ_BATCH do
    call('ZREM', key, unpack(members, from, math.min(from + $READ_BATCH - 1, #members)))
  end
end

-- Replaces the newest part of a merged entry, which has this cost.
local function replace(member, cost, ids)
  local at, h, l, _, entry_tag = read(member)
  local merged_tag = 4 + (ids > 0 and 8 or 0) + (holds and (16 + 64) * $KEPT_CELLS or 0)
  local rest = pack('>I2I4I7', ttl_of(member, entry_tag), 0, math.min(cost, $MAX_COST))
  local entry = long(at, h, l, merged_tag, rest)
  if entry == member then return end
  call('ZADD', key, '0', entry)
  call('ZREM', key, member)
end

-- Merges the entries of these ranks, of which none is kept. Returns whether there are several.
local function merge_all(first, past, ids)
  if first >= past then return false end
  local newest_part = member_at(past)
  local _, h, l, cost = read(member_at(first))
  local _, newest_high, newest_low = read(newest_part)
  if ids > 0 then add_ids(gone, first, past) end
  replace(newest_part, after(h, l) + cost - after(newest_high, newest_low), ids)
  call('ZREMRANGEBYRANK', key, first, past - 1)
  return true
end

-- Merges the entries of the ranks `first` to `past` that are not kept: those from `trigger` on, and the one before it. With the new
-- entry, it adds them to `gone` instead and returns their cost. Returns whether any merge.
local function merge_some(first, trigger, past, ids, with_new)
  local start, found = trigger, with_new
  for rank = trigger, past, $READ_BATCH do
    for _, member in ipairs(call('ZRANGE', key, rank, math.min(rank + $READ_BATCH - 1, past))) do
      local at, _, _, _, entry_tag = read(member)
      found = found or not is_kept(member, at, entry_tag)
    end
    if found then break end
  end
  if not found then return false end
  local from = trigger
  while from > first and start == trigger do
    local batch = call('ZRANGE', key, math.max(first, from - $BATCH), from - 1)
    from = from - #batch
    for i = #batch, 1, -1 do
      local at, _, _, _, entry_tag = read(batch[i])
      if not is_kept(batch[i], at, entry_tag) then start = from + i - 1 break end
    end
  end

  -- The parts, their ids, and the kept entries between them, whose running totals no longer include the parts before.
  local parts, indexes, old, lower, sum, between = {}, {}, {}, {}, 0, 0
  for rank = start, past, $READ_BATCH do
    for _, member in ipairs(call('ZRANGE', key, rank, math.min(rank + $READ_BATCH - 1, past))) do
      local at, h, l, cost, entry_tag = read(member)
      if not is_kept(member, at, entry_tag) then
        parts[#parts + 1], sum, between = member, sum + cost, #old
        if entry_tag % 4 >= 2 then indexes[#indexes + 1] = 'i' .. id_of(member, entry_tag) .. sub(member, 1, 7) end
      elseif sum > 0 then
        h, l = carry(h, l - sum)
        old[#old + 1], lower[#lower + 1] = member, sub(member, 1, 7) .. pack('>I3I6', h + $LONG_BIT, l) .. sub(member, 17)
      end
    end
  end
  if with_new then between = #old end
  if #parts < (with_new and 1 or 2) then return false end
  for rank = 1, between, $REWRITE_BATCH do
    local add, past_rank = { key }, math.min(rank + $REWRITE_BATCH - 1, between)
    for i = rank, past_rank do add[#add + 1], add[#add + 2] = '0', lower[i] end
    call('ZADD', unpack(add))
    call('ZREM', key, unpack(old, rank, past_rank))
  end
  for i = 1, #indexes do gone[#gone + 1] = indexes[i] end
  if with_new then
    for i = 1, #parts do gone[#gone + 1] = parts[i] end
  else
    replace(table.remove(parts), sum, ids)
    remove(parts)
  end
  return true, sum
end

-- Merges in the segment of the ages from `inner` to `window`. Returns whether any entries do, and the cost of those that the new one
-- takes over.
local function merge_segment(base, capped, ceased, ids, inner, window, resolution)
  local from, past, left = t - window + 1, t - inner, last - inner + 1
  if not holds then
    -- Mostly at most one has left the window.
    local two = call('ZREVRANGEBYLEX', key, '(' .. past_time(past), '[' .. from_time(from), 'LIMIT', '0', '2')
    if #two < 2 or time_of(two[1]) < left then return false, 0 end
    if time_of(two[2]) < left and not capped then
      local at, _, _, cost = read(two[1])
      local before, _, _, more = read(two[2])
      if at - at % resolution ~= before - before % resolution then return false, 0 end
      replace(two[1], cost + more, ids)
      call('ZREM', key, two[2])
      return true, 0
    end
  end

  local with_new = inner == 0 and joins
  local low, high = math.max(base(), rank_of(from)), (inner == 0 and call('ZCARD', key) or rank_of(past + 1)) - 1
  local trigger = inner == 0 and high + 1 or math.max(low, rank_of(left))
  -- The younger ones are kept.
  if others == 0 and not with_new and holds then high = math.min(high, rank_of(t - $KEPT + 1) - 1) end
  while ceased[#ceased] and ceased[#ceased] > high do table.remove(ceased) end
  local merged, taken = false, 0
  -- One cell with a trigger at a time, from the newest on, so that the ranks of the others stay.
  while with_new or high >= low do
    local at = t
    if not with_new then
      local rank = high
      if high < trigger then
        rank = ceased[#ceased]
        if not rank or rank < low then break end
      end
      at = time_of(member_at(rank))
      local next_cell = at - at % resolution + resolution
      if rank < high and next_cell <= past then high = math.min(high, rank_of(next_cell) - 1) end
    end
    local first = math.max(low, rank_of(at - at % resolution))
    local start = high >= trigger and math.max(first, trigger) or high + 1
    while ceased[#ceased] and ceased[#ceased] >= first do start = math.min(start, table.remove(ceased)) end
    local some, sum
    if not with_new and (not holds or time_of(member_at(high)) <= t - $KEPT) then
      some = merge_all(math.max(first, start - 1), high, ids)
    else
      some, sum = merge_some(first, start, high, ids, with_new)
    end
    if some and with_new then taken = sum end
    merged, with_new, high = merged or some, false, first - 1
  end
  return merged, taken
end

-- Precedes an append, after `make_room`. Returns the cost of the new entry with what it takes over.
local function merge(capped, ids, cost)
  if keeps then held = 16 * $KEPT_CELLS + 64 * others end
  if last < 0 or capped == -1 or t - last >= longest then return cost end
  local rank
  -- The rank of the first entry that stays.
  local function base()
    rank = rank or math.max(ids, capped or 0, expired or rank_of(t - longest + 1))
    return rank
  end

  -- The ranks of the entries that ceased to be kept since the newest one was appended.
  local ceased = {}
  if holds then
    local first, past = math.max(base(), rank_of(last - $KEPT + 1)), t < $KEPT and -1 or rank_of(t - $KEPT + 1) - 1
    for from = first, past, $BATCH do
      for i, member in ipairs(call('ZRANGE', key, from, math.min(from + $BATCH - 1, past))) do
        local _, _, _, _, entry_tag = read(member)
        if is_marked(member, entry_tag) then ceased[#ceased + 1] = from + i - 1 end
      end
    end
  end
  for place = 1, #windows, $LIMIT_LEN do
    local window, resolution = unpack_struct('>I7I7', windows, place)
    local inner = place > 1 and (unpack_struct('>I7', windows, place - $LIMIT_LEN)) or 0
    if resolution > 0 and inner <= t and (inner > 0 or holds) then
      local some, taken = merge_segment(base, capped, ceased, ids, inner, window, resolution)
      merged, cost = merged or some, cost + taken
    end
  end
  if holds then
    -- Another entry may have become the first, so this one is long and says nothing of it.
    if held == 0 then held = 64 * $KEPT_CELLS end
  else
    if merged then origin = time_of(member_at(base())) end
    if joins and t - last < shortest and t - t % finest == last - last % finest then
      local _, _, _, taken = read(newest)
      gone[#gone + 1], cost, merged = newest, cost + taken, true
      if taken == whole then origin = t end
    end
  end
  return math.min(cost, $MAX_COST)
end

-- Follows an append, after `finish`. `entry` is the newest entry. Counts again if entries merged.
local function finish_merge(entry)
  remove(gone)
  -- The new entry takes its id from the older one, which a receipt may still name.
  if lost then call('ZREM', key, 'i' .. id .. sub(from_time(lost), 1, 7)) end
  if merged then
    read_log(t, entry)
    for i = 1, #limits do
      local limit = limits[i]
      limit.used, limit.oldest, limit.rest = count(limit.window)
    end
  end
end
