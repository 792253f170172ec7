-- Sets the cost of one entry, or removes the entry. The last file of the script, after head.lua, entry.lua, log.lua and change.lua.
local log, before = open(key, read_newest()), 0
local target, t = find_receipt(log), log.t
if target then
  local cost, _ = parse('>I7', request, SETTLE_HEAD_LEN - 6)
  _, _, before = read(target)
  if cost > before then
    -- A log that holds 2^52 with the other entries takes no more.
    local _, total, first_cost = read(head(log)[1])
    local sum = (log.total - total) % TOTAL_END + first_cost
    cost = math.min(cost, math.max(before, MAX_COST - (sum - before)))
  end
  local oldest, new = log.head, set_cost(target, cost)
  log = reopened(t)
  -- The two oldest entries have been read already, unless it is a refund.
  if oldest and new then
    log.head = oldest[1] == target and new or { oldest[1], oldest[2] == target and new[1] or oldest[2] }
  end
end
return usage_in(log, SETTLE_HEAD_LEN + 1, #request + 1)
  .. pack('>I7I7I7I7B', before, now, t, log.last or 0, (target and APPLIED or 0) + (log.newest and 0 or EMPTY))
