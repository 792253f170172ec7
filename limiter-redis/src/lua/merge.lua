-- Merging, after evaluate.lua: what an append merges because it has just reached the age `op.exact`.

-- For each cell, the first of its entries that merge and what they become. `first` is the first entry that stays in the log, and
-- `origin` its time. Also returns the time of what that becomes.
local function find_groups(op, first, origin)
  local groups, log = {}, op.log
  local t = log.t
  -- From the newest that is due to the last that was due before.
  local past, least = t - op.exact, math.max(log.last - op.exact, origin - 1)
  local from = '[' .. from_time(least + 1)
  while past > least do
    local newer = call('ZREVRANGEBYLEX', log.key, '(' .. from_time(past + 1), from, 'LIMIT', '0', '1')[1]
    if not newer then break end
    local u, total_u = read(newer)
    -- The first time in its cell that the same windows count.
    local start = math.max(u - u % op.resolution, origin)
    for _, limit in ipairs(op.limits) do
      local edge = t - limit.window + 1
      if edge <= u and edge > start then start = edge end
    end
    first = first or head(log)[1]
    local lowest = '[' .. (start > origin and from_time(start) or first)
    -- The last that was due before, or if there is none in the cell, the first that is.
    local older = start <= least and call('ZREVRANGEBYLEX', log.key, '(' .. from_time(least + 1), lowest, 'LIMIT', '0', '1')[1]
      or range(log, lowest, '+', '1')[1]
    if older ~= newer then
      local _, total_v, cost_v = read(older)
      local cost = math.min((total_u - total_v) % TOTAL_END + cost_v, MAX_COST)
      local lap = byte(newer, 8) < LONG_BYTE and LAP_START or parse('>I2', newer, 8)
      local merged = pack('>i7I2I7BI6I7', u - TIME_BIAS, lap, total_u, MERGED, 0, cost)
      groups[#groups + 1] = { older = older, merged = merged }
      if older == first then origin = u end
    end
    past = start - 1
  end
  return groups, origin
end
