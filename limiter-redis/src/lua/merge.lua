
-- Merging, after prelude.lua and operation.lua: an append merges the entries that crossed a boundary, and the new one, each with the
-- one before it (items M2 to M6 of the contract). request.rs describes `windows`.
--
-- A merged entry is long. It has the time, the running total and the marks of its newest part, and the number 0 in its id.

-- Whether entries merged, and the one that the new entry takes over.
local merged, joined = false

local function member_at(rank) return call('ZRANGE', key, rank, rank)[1] end

-- The rank of the first entry from a time on.
local function rank_of(at) return call('ZLEXCOUNT', key, '-', '(' .. from_time(at)) end

-- Replaces an entry by a merged one of this cost.
local function replace(member, cost)
  local at, h, l, _, entry_tag = read(member)
  local rest = pack('>I2I4I7', ttl_of(member, entry_tag), 0, math.min(cost, $MAX_COST))
  local entry = long(at, h, l, entry_tag - entry_tag % 8 + 4, rest)
  if entry ~= member then
    call('ZADD', key, '0', entry)
    call('ZREM', key, member)
  end
  merged = true
end

-- Merges the entries whose age reached `boundary` since the newest one was appended. `outer` is the next window. From the newest on,
-- a cell at a time, so that the ranks of the others stay.
local function merge_crossed(capped, boundary, outer, resolution)
  local past = t - boundary
  -- Not later: what had crossed already, and what crosses another boundary.
  local least = math.max(last - boundary, t - (boundary < $TEN_MINUTES and math.min(outer, $TEN_MINUTES) or outer), -1)
  while past > least do
    local counted = '[' .. from_time(t - outer + 1)
    local three = call('ZREVRANGEBYLEX', key, '(' .. past_time(past), counted, 'LIMIT', '0', '3')
    if #three < 2 then return end
    local u, v = time_of(three[1]), time_of(three[2])
    if u <= least then return end
    local cell = u - u % resolution
    past = v < cell and v or cell - 1
    if v >= cell and v <= least and not capped then
      -- Mostly one has crossed.
      local _, _, _, cost = read(three[1])
      local _, _, _, more = read(three[2])
      replace(three[1], cost + more)
      call('ZREM', key, three[2])
    elseif v >= cell then
      local rank = call('ZRANK', key, three[1])
      local first = math.max(capped or 0, rank_of(math.max(cell, t - outer + 1)), rank_of(least + 1) - 1)
      if first < rank then
        local _, h, l, cost = read(member_at(first))
        local _, newest_high, newest_low = read(three[1])
        replace(three[1], after(h, l) + cost - after(newest_high, newest_low))
        call('ZREMRANGEBYRANK', key, first, rank - 1)
      end
    end
  end
end

-- Precedes an append, after `make_room`. Returns the cost of the entry that the new one takes over, 0 if there is none.
local function merge(capped)
  if last < 0 or capped == -1 or t - last >= longest then return 0 end
  local _, finest, shortest = unpack_struct('>BI7I7', windows)
  for place = $WINDOWS_HEAD_LEN + 1, #windows, $BOUNDARY_LEN do
    local boundary, outer, resolution = unpack_struct('>I7I7I7', windows, place)
    if marks == 0 or boundary >= $TEN_MINUTES then merge_crossed(capped, boundary, outer, resolution) end
  end
  if merged then origin = time_of(member_at(math.max(capped or 0, rank_of(t - longest + 1)))) end
  if marks > 0 or finest == 0 or t - last >= shortest or t - t % finest > last then return 0 end
  local before = merged and member_at('-1') or newest
  local _, _, _, cost = read(before)
  if cost == whole then origin = t end
  joined, merged = before, true
  return cost
end
