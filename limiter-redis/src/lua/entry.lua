-- Entries, after head.lua.

-- The time, running total and cost of an entry. Fails on a member that no limiter wrote.
local function read(member)
  local length = #member
  if length >= LONG_LEN then
    local at, total = parse('>i7I5', member)
    local single, more = SHORT_LEN, SHORT_LEN
    if total >= SHORT_TOTAL_END then
      total = parse('>I7', member, LONG_TOTAL_PLACE)
      single, more = LONG_LEN, LONG_CALLER_LEN
    end
    if at < 0 and at >= -TIME_BIAS then
      if length == single or length == more then return at + TIME_BIAS, total, 1 end
      if length == single + 7 or length == more + 7 then return at + TIME_BIAS, total, (parse('>I7', member, length - 6)) end
    end
  end
  error('DAMAGED a member of ' .. length .. ' bytes is no entry of a log', 0)
end

-- Sets when the key expires, unless an entry at `last` with the ttl code `last_ttl` has set the same. Nothing is read afterwards:
-- if the window is shorter than the script takes, the key is gone.
local function set_expiry(key, t, longest, ttl, last, last_ttl)
  if given then
    -- A given time says nothing about the server's clock, so the key is kept a minute longer.
    call('PEXPIRE', key, math.ceil((t - now + longest) / 1000) + GIVEN_TIME_GRACE_MS)
  elseif ttl == 0 then
    call('PEXPIREAT', key, math.floor((t + longest) / 1000) + 1)
  else
    -- All times in a cell share an expiry, so most appends need not set it. It is at most two cells late.
    local cell = 2 ^ ((ttl - ttl % TTL_CELLS) / TTL_CELLS)
    if ttl ~= last_ttl or last - last % cell < t - t % cell then
      call('PEXPIREAT', key, math.floor((t - t % cell + (ttl % TTL_CELLS + 1) * cell) / 1000) + 1)
    end
  end
end
