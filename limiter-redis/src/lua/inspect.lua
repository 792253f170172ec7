-- The reply: entries, their cost, the oldest and newest time, milliseconds to live, bytes; nothing if there is no log.
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key = KEYS[1]
