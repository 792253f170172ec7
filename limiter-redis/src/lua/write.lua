-- The end of the script: writes the entries of the fast path, sets the expiry of keys, and replies. On the general path, and for a renewal,
-- the entries are written, and `plans` has all operations.
for i = 1, count do
  local key, plan = keys[i], plans and plans[i]
  if plan then
    reply, entry, stays, drops_one, t = plan.reply, plan.entry, plan.stays, plan.drops_one, plan.t
    longest, ttl, last, last_ttl = plan.longest, plan.ttl, plan.last, plan.last_ttl
  end
  if is_denied and entry and byte(flags, i) < KEPT then
    -- Another one denies: the same as a peek.
    reply, entry = sub(reply, 1, -2) .. string.char(byte(reply, -1) - APPENDED), nil
  end
  if entry then
    -- Redis checks its memory limit before the first write only, so entries are added before others go.
    if merged then call('ZADD', key, '0', entry, '0', merged) else call('ZADD', key, '0', entry) end
    if drops_one then call('ZREMRANGEBYRANK', key, '0', '0') elseif stays then call('ZREMRANGEBYLEX', key, '[\224', '(' .. stays) end
    if merged then call('ZREMRANGEBYLEX', key, '[' .. gone, '(' .. merged) elseif gone then call('ZREM', key, gone) end
  end
  -- When the key expires. Nothing is read afterwards: if the window is shorter than the script takes, the key is gone.
  local appends = entry or plan and plan.is_written
  if appends and given then
    -- A given time does not reveal the server's clock, so keep the key for a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + GIVEN_TIME_GRACE_MS)
  elseif appends then
    -- All times in a cell share an expiry, so most appends need not set it: `last_ttl` is that of the newest entry before, at `last`. It
    -- is at most two cells late.
    local cell = 2 ^ ((ttl - ttl % TTL_CELLS) / TTL_CELLS)
    if ttl ~= last_ttl or last - last % cell < t - t % cell then
      call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % TTL_CELLS + 1) * cell) / 1000) + 1)
    end
  end
  if not plans then return reply end
  plans[i] = reply
end
return is_single and plans[1] or plans
