-- Describes a log. Returns the number of entries, their cost, the times of the oldest and the newest, the key's time to live in
-- milliseconds and its bytes; an empty list if there is no log.
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key = KEYS[1]
