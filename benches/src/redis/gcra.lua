-- The generic cell rate algorithm as redis_rate runs it for its AllowN: the same commands, the same arithmetic, the same
-- reply. KEYS: the key. ARGV: burst, rate, period in seconds, cost.
-- The key holds the time at which all that was admitted has drained, in seconds since 2017.
redis.replicate_commands()
local cost = tonumber(ARGV[4])
local interval = ARGV[3] / ARGV[2]
local time = redis.call('TIME')
local now = (time[1] - 1483228800) + (time[2] / 1000000)

local drained = redis.call('GET', KEYS[1])
drained = math.max(drained and tonumber(drained) or now, now)
local filled = drained + interval * cost
local room = now - (filled - interval * ARGV[1])
local remaining = room / interval
if remaining < 0 then
  return { 0, 0, tostring(-room), tostring(drained - now) }
end

local reset = filled - now
if reset > 0 then
  redis.call('SET', KEYS[1], filled, 'EX', math.ceil(reset))
end
return { cost, remaining, tostring(-1), tostring(reset) }
