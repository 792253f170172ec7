
-- The general form of an operation, after apply_fast.lua and prelude.lua. The former has read `request`, `given`, `now` and
-- `newest`.
read_log(now, newest)
local kind, cost = unpack_struct('>BI7', request)
local retention = kind > 8
if retention then kind = kind - 8 end
local windows = math.floor(#request / 14) - 1
local id = sub(request, 8 + 1, #request - 14 * windows)

-- What counts in each window. Of the longest, `behind` is the sum after the first entry that counts (-1 if none does), `origin`
-- the time of that entry, `whole` the sum from it on, and `expired` its rank, if known. `cap` is the most that a log holds.
local limits, fits, longest, cap, behind, origin, whole, expired = {}, true, 0, 0, -1
for i = 1, windows do
  local window, max = unpack_struct('>I7I7', request, 8 + 1 + #id + 14 * (i - 1))
  local used, oldest, rest, rank = count(window)
  if window > longest then longest, behind, origin, whole, expired = window, rest, oldest, used, rank end
  if retention and i == 1 then
    cap = max + 1
  else
    if used + cost > max then fits = false end
    if max > cap then cap = max end
    limits[#limits + 1] = { window = window, max = max, used = used, oldest = oldest, blocker = oldest, rest = rest }
  end
end

-- The entry that an earlier attempt of this operation appended.
local admitted, at = fits, nil
if #id == 16 then
  local index = tag >= 8 and call('ZRANGEBYLEX', key, '[i' .. id, '(i' .. id .. string.rep('\255', 8), 'LIMIT', '0', '1')[1]
  local appended = index and unpack_struct('>i7', index, 18) + 9007199254740992
  if appended and t - appended < longest then
    local from, past, skip = '[' .. from_time(appended), '(' .. past_time(appended), 0
    repeat
      local batch = call('ZRANGEBYLEX', key, from, past, 'LIMIT', skip, '64')
      for i = 1, #batch do
        local _, _, _, _, entry_tag = read(batch[i])
        if entry_tag % 4 >= 2 and id_of(batch[i], entry_tag) == id then at, admitted = appended, entry_tag % 2 == 0 end
      end
      skip = skip + 64
    until at or #batch < 64
  end
elseif ARGV[3] and last >= 0 then
  local since = given and now or now - ARGV[3] - 1000000
  local from, skip = '[' .. from_time(since), 0
  repeat
    if skip >= 4096 then error('UNKNOWN too many newer entries to find that of the first attempt', 0) end
    local batch = call('ZREVRANGEBYLEX', key, '+', from, 'LIMIT', skip, '64')
    for i = 1, #batch do
      local time, _, _, _, entry_tag = read(batch[i])
      if entry_tag % 4 < 2 and id_of(batch[i], entry_tag) == id then at, admitted = time, entry_tag % 2 == 0 end
    end
    skip = skip + 64
  until at or #batch < 64
end

local append = not at and (kind == 2 or kind == 3 or (fits and kind == 1))
local more = append and cost or 0
for i = 1, #limits do
  local limit = limits[i]
  local used, max, rest = limit.used, limit.max, limit.rest
  if fits and not at then
    -- The first entry that counts is the oldest, and nothing blocks.
    if append and used == 0 then limit.oldest = t end
  else
    limit.oldest = frees(limit.window, max, used, limit.oldest, rest, more)
    if used + more + cost > max and kind ~= 3 and rest + more > max - cost then
      limit.blocker = find(t - limit.window + 1, max - more - cost + 1) or t
    end
  end
  limit.used = used + more
end

if append then
  -- The rank of the first entry that the cap lets stay, nil if all may. Then the log begins there, or with the new entry.
  local kept
  if behind >= 0 and behind + cost >= cap then
    origin, kept, whole = find(t - longest + 1, cap - cost)
    if not kept then origin, kept, whole = t, -1, 0 end
  end
  if last < t and (behind < 0 or kept == -1) then high, low = 0, 0 end
  high, low = carry(high, low + cost)
  local ids = tag >= 8 and count_ids() or 0
  local entry
  if fits and #id == 6 and ids == 0 and high == 0 and low < 549755813888 and t - origin < 281474976710656
    and (last < t or is_short(newest)) then
    entry = pack('>i7I5I6I2', t - 9007199254740992, low, t - origin, math.min(whole + cost, 65535)) .. id
  else
    local entry_tag = (fits and 0 or 1) + (cost > 1 and 4 or 0) + (ids > 0 and 8 or 0)
    if #id == 16 then entry_tag, ids = entry_tag % 8 + 10, ids + 1 end
    entry = long(t, high, low, entry_tag, id)
  end
  if cost > 1 then entry = entry .. pack('>I7', cost) end
  -- Redis checks its memory limit before the first write only, so the append comes first.
  if #id == 16 then
    call('ZADD', key, '0', entry, '0', 'i' .. id .. sub(entry, 1, 7))
  else
    call('ZADD', key, '0', entry)
  end
  if newest then
    -- A new id moves all ranks up by one.
    local moved, first = #id == 16 and 1 or 0
    if kept == -1 then
      first = call('ZRANK', key, entry)
    else
      first = expired and expired + moved or call('ZLEXCOUNT', key, '-', '(' .. from_time(t - longest + 1))
      if kept then first = math.max(first, kept + moved) end
    end
    drop(ids, first - 1)
  end
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
  else
    -- A caller's id leaves no room for a ttl code.
    local ttl = #id == 6 and unpack_struct('>I2', id) or 0
    if ttl == 0 then
      call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
    elseif not newest or ttl_of(newest, tag) ~= ttl or expiry(last, ttl) ~= expiry(t, ttl) then
      call('PEXPIREAT', key, expiry(t, ttl))
    end
  end
  last = t
end

local code = (admitted and 1 or 0) + (append and 2 or at and 4 or 0) + (last < 0 and 16 or 0)
local reply = pack('>BI7I7I7', code, t, last < 0 and 0 or last, at or t)
for i = 1, #limits do
  local limit = limits[i]
  reply = reply .. pack('>I7I7I7', math.min(limit.used, 9007199254740992), limit.oldest, limit.blocker)
end
return reply
