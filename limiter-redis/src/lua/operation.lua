
-- What apply.lua and apply_group.lua begin with, and what precedes and follows an append, after prelude.lua. Under a limit with a
-- resolution, merge.lua comes between them and sets `merge`; `joins`, if a new entry merges with others of its time; and `valid`, how
-- long an id is valid. `stale` is the time of an older entry with the operation's id.
local merge, joins, valid, stale
read_log(now, newest)
local kind, deadline, cost = unpack_struct('>BI7I7', request)
local retention = kind > $RETENTION
if retention then kind = kind - $RETENTION end
local id = sub(request, $OP_HEAD_LEN + 1, #request - $LIMIT_LEN * math.floor((#request - $OWN_HEAD_LEN) / $LIMIT_LEN))

-- What counts in each window. Of the longest, `behind` is the sum after the first entry that counts (-1 if none does), `origin`
-- the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a log holds.
local limits, longest, cap, behind, origin, whole, expired = {}, 0, 0, -1
for i = $OP_HEAD_LEN + #id + 1, #request, $LIMIT_LEN do
  local window, max = unpack_struct('>I7I7', request, i)
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if retention then
    cap, retention = max + 1, false
  else
    if max > cap then cap = max end
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, rest = rest }
  end
end
valid = longest

-- Finds the entries of earlier attempts by the `left` ids of the store that have `places`: from the newest on, because others may
-- lie between. Returns their times by place, and whether the last one found was admitted.
local function find_earlier(since, places, left)
  local found, admitted, skip = {}, false, 0
  local least = '[' .. from_time(given and now or now - since - $REPEAT_SLACK_MICROS)
  repeat
    if skip >= $REPEAT_SEARCH_MAX then error('UNKNOWN too many newer entries to find those of earlier attempts', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', least, 'LIMIT', skip, '$BATCH')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      local place = entry_tag % 4 < 2 and places[id_of(batch[i], entry_tag)]
      if place then found[place], left, admitted = time, left - 1, entry_tag % 2 == 0 end
    end
    skip = skip + $BATCH
  until left == 0 or #batch < $BATCH
  return found, admitted
end

-- Reads the log again, whose newest entry is `entry`, and what counts in each window.
local function recount(entry)
  read_log(t, entry)
  for i = 1, #limits do
    local limit = limits[i]
    limit.used, limit.oldest, limit.rest = count(limit.window)
  end
end

-- Used, oldest and blocker of a limit once `more` is appended. `blocks` if a repetition may be denied.
local function usage(limit, more, blocks)
  local window, max, used, rest, blocker = limit.window, limit.max, limit.used, limit.rest, limit.oldest
  if blocks and used + more + cost > max and rest + more > max - cost then
    blocker = find(t - window + 1, max - more - cost + 1) or t
  end
  local oldest = frees(window, max, used, limit.oldest, rest, more)
  return pack('>I7I7I7', math.min(used + more, $USED_MAX), oldest, blocker)
end

-- What the tag of an entry at `t` that is not kept holds from 16 on: 0 unless the log may hold kept entries. Otherwise 16 times the
-- number of cells of five minutes, from that of the entry on, in which it may; and 64 times the same number for entries that are
-- younger than ten minutes and not kept.
local function marks()
  local cells = math.floor(tag / 16) % 4
  if cells > 0 then cells = cells - math.floor(t / $KEPT_CELL) + math.floor(last / $KEPT_CELL) end
  return cells > 0 and 16 * cells + 64 * $KEPT_CELLS or 0
end

-- Precedes an append of `more`. Returns the rank of the first entry that the cap lets stay: nil if all may, -1 if none. Then the
-- log begins there, or with the first new entry.
local function make_room(more)
  local capped
  if behind >= 0 and behind + more >= cap then
    origin, capped, whole = find(t - longest + 1, cap - more)
    if not capped then origin, capped, whole = t, -1, 0 end
  end
  -- Lowers the running total that the new entries go on from: to 0 if they are the first that count, and otherwise long before
  -- it overflows. Entries of one time sort by their totals, so it falls between two times only.
  if last < t then
    if behind < 0 or capped == -1 then high, low = 0, 0 elseif high >= $FALL_FROM then high = high - $FALL end
  end
  return capped
end

-- Whether new entries up to this running total are short, in a log with this number of callers' ids.
local function can_be_short(ids, total, marks)
  return ids == 0 and marks == 0 and high == 0 and total < $SHORT_TOTAL_END and t - origin < $AGE_END and (last < t or is_short(newest))
end

-- Follows an append, whose first entry is `entry` and which moved the ranks by `moved`.
local function finish(entry, capped, ids, moved, ttl)
  if newest then
    -- Drops what no limit can see: the entries that have left the longest window, and those before `capped`.
    local first
    if capped == -1 then
      first = call('ZRANK', key, entry)
    else
      first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
      if capped then first = math.max(first, capped + moved) end
    end
    drop(ids, first - 1)
  end
  -- Sets when the key expires, unless the entry that was the newest has the same expiry.
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + $GIVEN_TIME_GRACE_MS)
  elseif ttl == 0 then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  elseif not newest or ttl_of(newest, tag) ~= ttl or expiry(last, ttl) ~= expiry(t, ttl) then
    call('PEXPIREAT', key, expiry(t, ttl))
  end
end

-- Removes members.
local function remove(gone)
  for from = 1, #gone, $READ_BATCH do call('ZREM', key, unpack(gone, from, math.min(from + $READ_BATCH - 1, #gone))) end
end

-- Takes its id from the entry of this time, if the log still holds it.
local function lose_id(at)
  local member, entry_tag = find_entry(at, id)
  if member then
    call('ZADD', key, '0', sub(member, 1, 16) .. string.char(entry_tag - 2) .. string.rep('\0', $OWN_ID_LEN) .. sub(member, 34))
    call('ZREM', key, member)
  end
  call('ZREM', key, 'i' .. id .. sub(from_time(at), 1, 7))
end

-- Appends one entry of the operation. Returns it, and whether entries merged.
local function append(cost, admitted)
  local capped = make_room(cost)
  high, low = carry(high, low + cost)
  local own, ids, sum = #id == $OWN_ID_LEN, tag % 16 >= 8 and count_ids() or 0, math.min(whole + cost, $SUM_MAX)
  local held, gone, merged = marks(), {}, false
  if merge then cost, held, merged = merge(gone, capped, ids, cost) end
  local entry
  if own and can_be_short(ids, low, held) then
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
  remove(gone)
  if merge and stale then lose_id(stale) end
  return entry, merged
end
