-- Describes a log, after head.lua, entry.lua and log.lua. Returns the number of entries, their cost, the times of the oldest and the
-- newest, the key's time to live in milliseconds and its bytes; nothing if there is no log.
local key = keys[1]
local newest = call('ZRANGE', key, '0', '0', 'REV')[1]
if not newest then return end
local log, entries = open(key, newest), call('ZLEXCOUNT', key, '[\224', '+')
local oldest, total, cost = read(head(log)[1])
return { entries, cost + (log.total - total) % TOTAL_END, oldest, log.last, call('PTTL', key), call('MEMORY', 'USAGE', key) }
