
-- Describes a log, after head.lua and prelude.lua. Returns the number of entries, their cost, the times of the oldest and the
-- newest, the key's time to live in milliseconds and its bytes; nothing if there is no log.
if not newest then return end
local _
last, high, low, _, tag = read(newest)
local ids = tag % 16 >= 8 and count_ids() or 0
local rank = ids == 0 and '0' or ids
local at, h, l, cost = read(call('ZRANGE', key, rank, rank)[1])
return { call('ZCARD', key) - ids, cost + after(h, l), at, last, call('PTTL', key), call('MEMORY', 'USAGE', key) }
