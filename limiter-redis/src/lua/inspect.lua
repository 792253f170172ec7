-- Entries, their cost, the oldest and newest time, milliseconds to live, bytes.
local indexed = call('ZCOUNT', key, '-inf', '(0')
local size = call('ZCARD', key) - indexed
if size <= 0 then return {} end
local first = call('ZRANGE', key, indexed, indexed, 'WITHSCORES')
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
local cost = cost_of(first[1], tonumber(first[2]))
cost_of(last[1], tonumber(last[2]))
local high, low = unpack_struct('>I3I6', last[1])
local h, l = unpack_struct('>I3I6', first[1])
cost = cost + (high - h) * 281474976710656 + low - l
return { size, cost, tonumber(first[2]), tonumber(last[2]), call('PTTL', key), call('MEMORY', 'USAGE', key) }
