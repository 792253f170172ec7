-- The sorted set of the textbooks: trim by score, count, add, expire. KEYS: the key. ARGV: the time, the window, the maximum, and
-- the new member.
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return 1
