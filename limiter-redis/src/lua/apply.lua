-- ARGV: the request in bytes (kind: 1 acquire, 2 attempt, 3 record, 4 peek; then 7 each: cost, then window and maximum of
-- each limit; then the id, a caller's 16 bytes or 6, of which the first two say how long the key is kept); the given time,
-- or '' or nothing; microseconds since the first sending, if this is a repetition.
-- The reply is a string: code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest, blocker of each limit.
-- Codes: 1 admitted, 2 appended, 4 repeated, 16 empty log. With 32 it is shorter: no entry, and of each limit what was used
-- before, and the oldest, which is what blocks, too.
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key, request, given = KEYS[1], ARGV[1], ARGV[2]
local now
if given and given ~= '' then
  now = given + 0
else
  given = nil
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
local newest = call('ZRANGE', key, '0', '0', 'REV')[1]

-- The common operations, on a log whose newest entry says where it begins (see entry.lua). They must be cheap: one call
-- more shows, a table or a number made into text shows. Whatever is not common falls through to the general form.
local t, last, total, first, sum, kept = now, 0, 0, now, 0
local common = #request % 14 == 0 and not ARGV[3]
if newest and common then
  common = #newest == 26 or #newest == 33
  if common then
    local age
    last, total, age, sum, kept = unpack_struct('>i7I5I6I2I2', newest)
    last = last + 9007199254740992
    common = last >= 0 and last < 9007199254740992 and total < 549755813888
    if last > t then t = last end
    first = last - age
  end
end
if common then
  local kind, cost = unpack_struct('>BI7', request)
  local fits, facts, longest, counts, from = true, '', 0
  for i = 9, #request - 19, 14 do
    local window, max = unpack_struct('>I7I7', request, i)
    local used, rest, oldest = 0, 0, t
    if newest and t - last < window then
      if t - first < window and sum < 65535 and sum + cost <= max + 1 then
        -- What was appended after the first is this at most.
        used, rest, oldest = sum, sum - 1, first
      else
        local start = t - first < window and first or t - window + 1
        local member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', start - 9007199254740992), '+', 'LIMIT', '0', '1')[1]
        local length, before = #member
        if length ~= 26 and length ~= 33 then common = false break end
        oldest, before = unpack_struct('>i7I5', member)
        if before >= 549755813888 then common = false break end
        oldest, rest = oldest + 9007199254740992, total - before
        used = rest + (length == 26 and 1 or unpack_struct('>I7', member, 27))
      end
    end
    if used + cost > max then
      fits = false
      -- What blocks is the first that counts, or it takes a search.
      if used > max or rest + cost > max then common = false break end
    end
    if window > longest then longest, counts, from = window, used, oldest end
    facts = facts .. pack('>I7I7', used, oldest)
  end
  local append = fits and kind ~= 4
  if append then
    common = common and total + cost < 549755813888 and t - from < 281474976710656
  else
    common = common and (kind == 1 or kind == 4)
  end
  if common then
    local reply = pack('>BI7I7', (append and 35 or fits and 33 or 32) + (newest and 0 or 16), t, last) .. facts
    if not append then return reply end
    local id, after = sub(request, -6), counts + cost
    local entry = pack('>i7I5I6I2', t - 9007199254740992, total + cost, t - from, after < 65535 and after or 65535) .. id
    if cost ~= 1 then entry = entry .. pack('>I7', cost) end
    -- The first write must be one that a full server refuses.
    call('ZADD', key, '0', entry)
    -- What has left the log is removed whenever so much has that it passes a multiple of 8.
    local left = total - counts
    if from > first and (sum == 65535 or left - left % 8 > total - sum) then
      call('ZREMRANGEBYLEX', key, '-', '(' .. pack('>i7', from - 9007199254740992))
    end
    if given then
      call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
    else
      -- As `expiry` in entry.lua, which the common operations do without.
      local keep = unpack_struct('>I2', id)
      local cell = 2 ^ ((keep - keep % 64) / 64)
      if keep ~= kept or last - last % cell < t - t % cell then
        call('PEXPIREAT', key, math.floor((t - t % cell + (keep % 64 + 1) * cell) / 1000) + 1)
      end
    end
    return reply
  end
end

