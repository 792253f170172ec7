
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
  local kind, common, most = nil, true, 0
  kind, cost = unpack_struct('>BI7', request)
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
  -- `counts` is the rank of the first that counts in the longest window, -1 if none does, or the member itself.
  local used, oldest, fits, counts = {}, {}, true
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
    if window > most then most, counts = window, rank end
    used[i], oldest[i] = sum, first
  end
  local append = fits and kind ~= 4
  if append then
    common = common and low + cost < 281474976710656
  else
    common = common and (kind == 1 or kind == 4)
  end
  if common then
    local code = append and 3 or (fits and 1 or 0) + (newest and 0 or 16)
    local facts = pack('>BI7I7I7', code, t, append and t or last, t)
    for i = 1, #used do
      facts = facts .. pack('>I7I7I7', used[i] + (append and cost or 0), oldest[i], oldest[i])
    end
    if not append then return facts end
    longest, reply = most, facts
    if counts == -1 then
      expired, high, low = -2, 0, 0
    elseif counts ~= 0 then
      expired = counts == 1 and 0 or call('ZRANK', key, counts) - 1
    end
  end
end

