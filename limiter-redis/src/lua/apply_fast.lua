
-- Decides on an operation, and appends its entry. The script is head.lua, load.lua, this file, prelude.lua, operation.lua,
-- merge.lua and apply.lua.
--
-- ARGV[1], the request in bytes:
--   kind (1), plus KINDS times the number of the limiter's limits
--   deadline (7): by the server's clock, the first microsecond in which nothing is appended; TIME_END for none
--   cost (7)
--   id (a caller's 16, or the store's 6, which begin with a ttl code: see prelude.lua)
--   each limit: window (7), maximum (7); those of the limiter's default policy, if it is another one, precede the operation's own
-- ARGV[3]: the windows and resolutions in bytes if a limit has a resolution; see request.rs.
-- ARGV[4]: microseconds since the first attempt, if this is a repetition.
--
-- Returns a string: a code (1 byte), then 7 bytes each: time, newest, entry, then used, oldest and blocker of each limit.
-- The code is a sum of ADMITTED, APPENDED, REPEATED, EMPTY, SHORT and REFUNDABLE, or LATE alone: past the deadline. A SHORT reply,
-- that of the fast path, has no entry, and for each limit what was used before the operation and the oldest, which is also the
-- blocker. The last limit comes first. No reply has the limiter's limits.
--
-- The fast path: common operations on a log whose newest entry is short (see prelude.lua) and therefore describes the whole
-- log. Every command, table, function or number converted to text shows in the server's time, so there are few of them here.
-- All else falls through to the general form in apply.lua.
local t, last, total, first, sum, last_ttl = now, 0, 0, now, 0
local common = #request % $LIMIT_LEN == $OWN_HEAD_REST and not since and not (windows and string.byte(windows) > 0)
-- The cost of the newest entry if the new one takes it over; whether that one alone counts in a window; and whether other entries may
-- merge. Only where a limit has a resolution.
local joins, alone, crosses = false, false, false
if newest and common then
  common = #newest == $SHORT_LEN or #newest == $SHORT_COST_LEN
  if common then
    local age
    last, total, age, sum, last_ttl = unpack_struct('>i7I5I6I2I2', newest)
    last = last + $TIME_BIAS
    common = last >= 0 and last < $TIME_END and total < $SHORT_TOTAL_END
    if last > t then t = last end
    first = last - age
    if windows then
      local _, finest, shortest, boundary = unpack_struct('>BI7I7I7', windows)
      crosses = t > last and t - first >= boundary
      if finest > 0 and t - last < shortest and t - t % finest <= last then
        joins = #newest == $SHORT_LEN and 1 or unpack_struct('>I7', newest, $SHORT_LEN + 1)
      end
    end
  end
end
if common then
  local kind, deadline, cost, ttl, id, window, max = unpack_struct('>BI7I7I2I4I7I7', request)
  -- Where the operation's own limits begin. If others precede them: the longest window and the largest maximum of all.
  local own, reach, cap = $OWN_HEAD_LEN + 1
  if kind >= $KINDS then
    reach, cap = window, max
    for i = own + $LIMIT_LEN, #request, $LIMIT_LEN do
      local other_window, other_max = unpack_struct('>I7I7', request, i)
      if other_window > reach then reach = other_window end
      if other_max > cap then cap = other_max end
    end
    own = own + math.floor(kind / $KINDS) * $LIMIT_LEN
    kind = kind % $KINDS
  end
  -- `fits` is the code of the reply, false if the operation is denied.
  local fits, longest, facts, used, oldest, counts, from, second = $SHORT + $ADMITTED + $REFUNDABLE, 0
  -- Whether it is appended even if it does not fit; and the oldest entries of all limits but the last.
  local appends_anyway, others = kind == $ATTEMPT or kind == $RECORD, crosses and {}
  for i = $OWN_HEAD_LEN + 1, #request, $LIMIT_LEN do
    if i > $OWN_HEAD_LEN + 1 then
      if i > own then
        facts = (facts or '') .. pack('>I7I7', used, oldest)
        if others then others[oldest] = true end
      end
      window, max = unpack_struct('>I7I7', request, i)
    end
    local rest
    if not newest or t - last >= window then
      used, rest, oldest = 0, -1, t
    elseif t - first < window and sum < $SUM_MAX and (sum + cost <= max + 1 or i < own) then
      -- At most this was appended after the first.
      used, rest, oldest = sum, sum - 1, first
    else
      -- The first entry that counts: the first of all, or the second where one window alone decides.
      local rank = t - first < window and '0' or #request == $OWN_HEAD_LEN + $LIMIT_LEN and '1'
      repeat
        local member
        if rank then
          member = call('ZRANGE', key, rank, rank)[1]
        else
          member = call('ZRANGEBYLEX', key, '[' .. pack('>i7', t - window - ($TIME_BIAS - 1)), '+', 'LIMIT', '0', '1')[1]
        end
        local length, before, high = #(member or '')
        common = length == $SHORT_LEN or length == $SHORT_COST_LEN
        if common then
          oldest, before = unpack_struct('>i7I5', member)
        elseif windows and (length == $LONG_LEN or length == $LONG_COST_LEN) then
          oldest, high, before = unpack_struct('>i7I3I6', member)
          common = high == $LONG_BIT
        end
        if not common then break end
        oldest, rest = oldest + $TIME_BIAS, total - before
        common = before < $SHORT_TOTAL_END and oldest <= t
        used = rest + ((length == $SHORT_LEN or length == $LONG_LEN) and 1 or unpack_struct('>I7', member, length - 6))
        if i == $OWN_HEAD_LEN + 1 then second = rank == '1' end
        rank = nil
      until t - oldest < window
      if not common then break end
    end
    if joins and used == joins then oldest, alone = t, i >= own end
    if used + cost > max then
      if i >= own and not appends_anyway then
        fits = false
        -- The blocker is the first that counts; otherwise it takes a search.
        if used > max or rest + cost > max then common = false break end
      else
        fits = false
        if i < own then fits, id = $SHORT + $ADMITTED, id % $FINAL_ID + $FINAL_ID end
        if i < own and (window < reach or max < cap) then
          -- Should no other window be as long, what the log keeps takes a search: there is no such age.
          window, oldest = window - 1, -$AGE_END
        else
          if joins then common = false break end
          -- The entry counts. Mostly the first one goes for it, and the second becomes the first, and the blocker of an attempt.
          local member = t - first < window and (i < own or #request == $OWN_HEAD_LEN + $LIMIT_LEN)
            and call('ZRANGE', key, '1', '1')[1]
          local length, before = #(member or '')
          common = length == $SHORT_LEN or length == $SHORT_COST_LEN
          if not common then break end
          oldest, before = unpack_struct('>i7I5', member)
          oldest, rest = oldest + $TIME_BIAS, total - before
          counts = rest + (length == $SHORT_LEN and 1 or unpack_struct('>I7', member, $SHORT_LEN + 1))
          common = before < $SHORT_TOTAL_END and oldest <= t and rest + 2 * cost <= max and counts + cost >= max
          if not common then break end
          longest, from, second = window, oldest, true
        end
      end
    end
    if window > longest then longest, counts, from = window, used, oldest end
  end
  local append = (fits or appends_anyway) and kind ~= $PEEK
  -- The newest entry that has crossed a boundary, the oldest that merges with it, and what they become. merge.lua has the general form.
  local crossed, partner, merged
  if append then
    common = common and now < deadline and total + cost < $SHORT_TOTAL_END and t - from < $AGE_END
    if crosses then common = common and fits and not second and not joins end
    for place = $WINDOWS_HEAD_LEN + 1, crosses and #windows or 0, $BOUNDARY_LEN do
      if not common then break end
      local boundary, outer, resolution = unpack_struct('>I7I7I7', windows, place)
      if t - first >= boundary then
        local least = math.max(last - boundary, t - (boundary < $TEN_MINUTES and math.min(outer, $TEN_MINUTES) or outer))
        local past, counted = pack('>i7', t - boundary - ($TIME_BIAS - 1)), pack('>i7', t - outer - ($TIME_BIAS - 1))
        -- Mostly few have crossed.
        local members, batch = nil, 0
        repeat
          batch = batch == 0 and $FIND_BATCH or $BATCH
          members = call('ZREVRANGEBYLEX', key, '(' .. past, '[' .. counted, 'LIMIT', '0', batch)
        until #members < batch or batch == $BATCH or unpack_struct('>i7', members[batch]) + $TIME_BIAS <= least
        -- The newest one that crossed, the number of those that merge with it, and the time of the last of them.
        local newer, number, before = members[1] and unpack_struct('>i7', members[1]) + $TIME_BIAS or -1, 0
        if newer > least then
          local at, cell = newer, newer - newer % resolution
          while at and at >= cell and (not before or before > least) do
            number, before = number + 1, at
            at = members[number + 1] and unpack_struct('>i7', members[number + 1]) + $TIME_BIAS
          end
          common = (number < #members or #members < batch) and (before <= least or not at or at <= least)
          if number > 1 then
            crossed, partner = members[1], members[number]
            local single, long = #partner == $SHORT_LEN or #partner == $LONG_LEN, #partner == $LONG_LEN or #partner == $LONG_COST_LEN
            common = common and not merged and (#crossed == $SHORT_LEN or #crossed == $SHORT_COST_LEN)
              and (single or long or #partner == $SHORT_COST_LEN)
            if not common then break end
            local _, low, _, _, code, bits = unpack_struct('>i7I5I6I2I2I4', crossed)
            local units = low - unpack_struct(long and '>I6' or '>I5', partner, long and 11 or 8)
            units = units + (single and 1 or unpack_struct('>I7', partner, #partner - 6))
            local entry_tag = bits >= $FINAL_ID and bits < $DENIED_ID and 4 + $FINAL or 4
            merged = pack('>i7I3I6BI2I4I7', newer - $TIME_BIAS, $LONG_BIT, low, entry_tag, code, 0, math.min(units, $MAX_COST))
            -- The last of them may be the first that a limit counts.
            if at ~= before then
              common = not others[before]
              if oldest == before then oldest = newer end
              if from == before then from = newer end
              if first == before then first = newer end
            end
          end
        end
      end
    end
  else
    common = common and (kind == $ACQUIRE or kind == $PEEK)
    if alone then common, oldest = common and not facts, last end
  end
  if common then
    local code = fits or $SHORT
    if append then code = code + $APPENDED end
    if not newest then code = code + $EMPTY end
    local reply = pack('>BI7I7I7I7', code, t, last, used, oldest)
    if facts then reply = reply .. facts end
    if not append then return reply end
    if counts == 0 then total = 0 end
    if not fits then id = id + $DENIED_ID end
    counts = counts + cost
    if counts > $SUM_MAX then counts = $SUM_MAX end
    local entry = pack('>i7I5I6I2I2I4', t - $TIME_BIAS, total + cost, t - from, counts, ttl, id)
    if joins then cost = cost + joins end
    if cost ~= 1 then entry = entry .. pack('>I7', cost) end
    if pause and not pause(fits) then return end
    -- Redis checks its memory limit before the first write only, so the append comes first.
    if merged then
      call('ZADD', key, '0', entry, '0', merged)
      call('ZREMRANGEBYLEX', key, '[' .. partner, '[' .. crossed)
    else
      call('ZADD', key, '0', entry)
    end
    if joins and (second or from <= last) then call('ZREM', key, newest) end
    if second then
      call('ZREMRANGEBYRANK', key, '0', '0')
    elseif from > first then
      call('ZREMRANGEBYLEX', key, '[\$FIRST_TIME_BYTE', '(' .. pack('>i7', from - $TIME_BIAS))
    end
    if given then
      call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + $GIVEN_TIME_GRACE_MS)
    else
      -- `expiry` of prelude.lua, inlined.
      local cell = 2 ^ ((ttl - ttl % $TTL_CELLS) / $TTL_CELLS)
      if ttl ~= last_ttl or last - last % cell < t - t % cell then
        call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % $TTL_CELLS + 1) * cell) / 1000) + 1)
      end
    end
    return reply
  end
end
