
local newest = call('ZRANGE', key, '-1', '-1')[1]
if not newest then return {} end
local last, high, low, _, _, begin = read(newest)
local before = count_before(begin)
local at, h, l, cost = read(call('ZRANGE', key, before, before)[1])
cost = cost + (high - h) * 281474976710656 + low - l
return { call('ZCARD', key) - before, cost, at, last, call('PTTL', key), call('MEMORY', 'USAGE', key) }
