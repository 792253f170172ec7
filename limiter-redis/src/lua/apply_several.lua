
-- Several limits, and nothing else out of the common.
if #request > 30 and #request % 14 == 2 and not ARGV[3] then
  -- The time, running total and cost of an entry; nothing if it is not common.
  local function entry(member)
    local length = #member
    if length ~= 26 and length ~= 33 then return nil end
    local mark, at, high, low, tag = unpack_struct('>BI7I3I6B', member)
    if mark ~= 128 or tag ~= (length == 26 and 0 or 4) or at >= 9007199254740992 then return nil end
    return at, high, low, length == 26 and 1 or unpack_struct('>I7', member, 27)
  end
  local kind, cost = unpack_struct('>BI7', request)
  local t, last, high, low, common = now, 0, 0, 0, true
  -- The two oldest entries.
  local at1, high1, low1, own1, at2, high2, low2, own2
  if newest then
    last, high, low = entry(newest)
    common = last
    if common then
      if last > t then t = last end
      local oldest = call('ZRANGE', key, '0', '1')
      at1, high1, low1, own1 = entry(oldest[1])
      common = at1
      if oldest[2] then at2, high2, low2, own2 = entry(oldest[2]) end
    end
  end
  -- `expired` is how many have, -1 if all, or the first member that has not.
  local used, oldest, fits, longest, expired = {}, {}, true, 0
  for i = 1, common and (#request - 16) / 14 or 0 do
    local window, max = unpack_struct('>I7I7', request, 14 * i - 5)
    local sum, rest, first, rank = 0, 0, t, newest and -1 or 0
    if newest and t - last < window then
      local h, l, own
      if t - at1 < window then
        first, h, l, own, rank = at1, high1, low1, own1, 0
      elseif at2 and t - at2 < window then
        first, h, l, own, rank = at2, high2, low2, own2, 1
      else
        rank = call('ZRANGEBYLEX', key, '[\128' .. pack('>I7', t - window + 1), '+', 'LIMIT', '0', '1')[1]
        first, h, l, own = entry(rank)
      end
      if not first then common = false break end
      rest = (high - h) * 281474976710656 + low - l
      sum = rest + own
    end
    if sum + cost > max then
      fits = false
      -- What blocks is the first that counts, or it takes a search.
      if sum > max or rest + cost > max then common = false break end
    end
    if window > longest then longest, expired = window, rank end
    used[i], oldest[i] = sum, first
  end
  local append = fits and kind ~= 4
  if append then
    common = common and low + cost < 281474976710656
  else
    common = common and (kind == 1 or kind == 4)
  end
  if common then
    if append then
      local member, keep = sub(request, -8), unpack_struct('>I2', request, #request - 7)
      if expired == -1 then high, low = 0, 0 end
      if cost == 1 then
        member = pack('>BI7I3I6B', 128, t, high, low + 1, 0) .. member
      else
        member = pack('>BI7I3I6B', 128, t, high, low + cost, 4) .. member .. pack('>I7', cost)
      end
      call('ZADD', key, '0', member)
      if expired == 1 then
        call('ZREMRANGEBYRANK', key, '0', '0')
      elseif expired == -1 then
        call('ZREMRANGEBYRANK', key, '0', '-2')
      elseif expired ~= 0 then
        call('ZREMRANGEBYRANK', key, '0', call('ZRANK', key, expired) - 1)
      end
      if given then
        call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
      else
        local cell = 2 ^ ((keep - keep % 64) / 64)
        if not newest or unpack_struct('>I2', newest, 19) ~= keep or last - last % cell < t - t % cell then
          call('PEXPIREAT', key, math.floor((t - t % cell + (keep % 64 + 1) * cell) / 1000) + 1)
        end
      end
    end
    local code = append and 3 or (fits and 1 or 0) + (newest and 0 or 16)
    local reply = pack('>BI7I7I7', code, t, append and t or last, t)
    for i = 1, #used do
      reply = reply .. pack('>I7I7I7', used[i] + (append and cost or 0), oldest[i], oldest[i])
    end
    return reply
  end
end

