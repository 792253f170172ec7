-- The beginning of every script: the time. README.md has the formats, ../format.rs the numbers.
--
-- KEYS are the logs. ARGV is a request for each of them, then the given time, or '' or nothing for the server's clock, then
-- what a repetition knows of the earlier attempts, otherwise '' or nothing.
local call, pack, parse, sub, byte = redis.call, struct.pack, struct.unpack, string.sub, string.byte
local keys, args = KEYS, ARGV
local count = #keys
local given, since, now = args[count + 1], args[count + 2], nil
if since == '' then since = nil end
if given and given ~= '' then
  now = given + 0
else
  given = nil
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
end
