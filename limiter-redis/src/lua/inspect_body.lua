
local newest = call('ZRANGE', key, '-1', '-1')[1]
if not newest then return {} end
local last, high, low = read(newest)
local ids = count_ids()
local at, h, l, cost = read(call('ZRANGE', key, ids, ids)[1])
cost = cost + (high - h) * 281474976710656 + low - l
return { call('ZCARD', key) - ids, cost, at, last, call('PTTL', key), call('MEMORY', 'USAGE', key) }
