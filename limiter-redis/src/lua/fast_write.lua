-- The end of the fast path, after fast.lua: appends, and replies.
for i = 1, is_common and count or 0 do
  local key = keys[i]
  if plans then reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl = unpack(plans[i], 1, 11) end
  if is_denied and entry and byte(flags, i) < KEPT then
    -- Another one denies: the same as a peek.
    reply, entry = sub(reply, 1, -2) .. string.char(byte(reply, -1) - APPENDED), nil
  end
  if entry then
    -- Redis checks its memory limit before the first write only, so entries are added before others go.
    if merged then call('ZADD', key, '0', entry, '0', merged) else call('ZADD', key, '0', entry) end
    if drops_one then call('ZREMRANGEBYRANK', key, '0', '0') elseif stays then call('ZREMRANGEBYLEX', key, '[\224', '(' .. stays) end
    if merged then call('ZREMRANGEBYLEX', key, '[' .. gone, '(' .. merged) elseif gone then call('ZREM', key, gone) end
    if given then
      call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + GIVEN_TIME_GRACE_MS)
    else
      local cell = 2 ^ ((ttl - ttl % TTL_CELLS) / TTL_CELLS)
      if ttl ~= last_ttl or last - last % cell < t - t % cell then
        call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % TTL_CELLS + 1) * cell) / 1000) + 1)
      end
    end
  end
  if is_single then return reply end
  plans[i] = reply
end
if is_common then return plans end
