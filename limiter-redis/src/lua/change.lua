-- Changes to one entry, after log.lua. settle.lua or renew.lua follows.
local key, request = keys[1], args[1]

local function read_newest()
  local newest = call('ZRANGE', key, '0', '0', 'REV')[1]
  -- Callers' ids whose entries are gone are no log.
  if newest and #newest == ID_MEMBER_LEN then
    call('UNLINK', key)
    return
  end
  return newest
end

-- An entry whose running total changes becomes a long one: a short one also implies the log's total.
local function moved(member, by, flags, new_cost)
  local at, total, cost = read(member)
  local lap = byte(member, 8) < LONG_BYTE and LAP_START or parse('>I2', member, 8)
  total, lap = shifted(total, lap, by)
  local id = byte(member, 8) < LONG_BYTE and id_of(member) or sub(member, LONG_TTL_PLACE, #member - (cost > 1 and 7 or 0))
  cost = new_cost or cost
  return pack('>i7I2I7B', at - TIME_BIAS, lap, total, flags) .. id .. (cost > 1 and pack('>I7', cost) or '')
end

-- The entry of the request's receipt, unless that has expired.
local function find_receipt(log)
  local id = sub(request, 1, CALLER_ID_LEN)
  local at, window = parse('>I7I7', request, CALLER_ID_LEN + 1)
  if not log.newest or log.t - at >= window then return nil end
  -- The entry has a caller's id, or the store's, which comes behind zeros.
  local zeros = string.rep('\0', CALLER_ID_LEN - OWN_ID_LEN)
  local own_id = sub(id, 1, #zeros) == zeros and sub(id, #zeros + 1) or nil
  return find_entry(log, at, id, own_id)
end

-- Replaces members from the first one on. New ones come before old ones go, so that the key is never empty and keeps its time to live.
local function rewrite(old, new, first)
  for from = first, #new, REWRITE_BATCH do
    local add, remove = { key }, { key }
    for i = from, math.min(from + REWRITE_BATCH - 1, #new) do
      add[#add + 1], add[#add + 2] = '0', new[i]
      remove[#remove + 1] = old[i]
    end
    call('ZADD', unpack(add))
    call('ZREM', unpack(remove))
  end
end

-- Sets the cost of an entry. 0 removes it. Returns what the entry and all newer ones have become, if their costs changed.
local function set_cost(target, cost)
  local at, _, before = read(target)
  if cost == before then return end
  -- The entry and all newer ones, and what they become. Everything is read before anything is written.
  local rank, size, old, new = call('ZRANK', key, target), call('ZCARD', key), {}, {}
  for first = rank, size - 1, READ_BATCH do
    for _, member in ipairs(call('ZRANGE', key, first, first + READ_BATCH - 1)) do
      old[#old + 1], new[#new + 1] = member, moved(member, cost - before, flags_of(member))
    end
  end
  new[1] = cost > 0 and moved(target, cost - before, flags_of(target), cost)
  -- Appends trust the newest entry to describe the log and the key's expiry. If it goes, the one before it does neither.
  local second = cost == 0 and #old == 1 and rank > 0 and call('ZRANGE', key, rank - 1, rank - 1)[1]
  if second and #second ~= ID_MEMBER_LEN and not has(flags_of(second), NO_EXPIRY) then
    old[2], new[2] = second, moved(second, 0, flags_of(second) + NO_EXPIRY)
  end

  rewrite(old, new, cost > 0 and 1 or 2)
  if cost == 0 then
    call('ZREM', key, target)
    local name = 'i' .. id_of(target)
    local score = #name == ID_MEMBER_LEN and call('ZSCORE', key, name)
    if score and score + TIME_BIAS == at then call('ZREM', key, name) end
  end
  return new
end

-- The log after a change at `t`.
local function reopened(t)
  local log = open(key, read_newest())
  log.t = t
  return log
end

-- The usage of each limit between two places of the request: its sum, and the time of the first entry whose expiry frees a unit.
local function usage_in(log, first, past)
  local reply, t = '', log.t
  for start = first, past - 1, LIMIT_LEN do
    local window, max = parse('>I7I7', request, start)
    local used, oldest, rest = count_in(log, window, max)
    if used > max and rest >= max then oldest = find(log, t - window + 1, max) or t end
    reply = reply .. pack('>I7I7', used, oldest)
  end
  return reply
end
