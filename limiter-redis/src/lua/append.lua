
-- The entry of a common operation, and `reply`. It drops the entries up to the rank `expired`, if that is set.
if reply then
  local id, keep = sub(request, -8), unpack_struct('>I2', request, #request - 7)
  local entry
  if cost == 1 then
    entry = pack('>BI7I3I6B', 128, t, high, low + 1, 0) .. id
  else
    entry = pack('>BI7I3I6B', 128, t, high, low + cost, 4) .. id .. pack('>I7', cost)
  end
  -- The first write must be one that a full server refuses.
  call('ZADD', key, '0', entry)
  if expired then call('ZREMRANGEBYRANK', key, '0', expired == 0 and '0' or expired) end
  if given then
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + 60000)
  else
    -- As `expiry` in entry.lua, which the common operations do without.
    local cell = 2 ^ ((keep - keep % 64) / 64)
    if not newest or unpack_struct('>I2', newest, 19) ~= keep or last - last % cell < t - t % cell then
      call('PEXPIREAT', key, math.floor((t - t % cell + (keep % 64 + 1) * cell) / 1000) + 1)
    end
  end
  return reply
end

