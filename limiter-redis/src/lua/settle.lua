-- ARGV: the entry's id (16 bytes), then 7 bytes each: its time, the receipt's window, the new cost; the given time or none.
-- The reply is 1 if the entry was changed, else 0.
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key = KEYS[1]
