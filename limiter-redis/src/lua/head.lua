-- The beginning of every script. format.rs lists the numbers for the names that begin with a dollar sign.
--
-- ARGV[1] is the request in bytes. ARGV[2] is the given time, or '' or nothing for the server's clock.
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
