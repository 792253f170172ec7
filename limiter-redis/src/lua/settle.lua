-- Sets the cost of one entry, or removes the entry.
-- ARGV[1], the request in bytes: the entry's id (16 bytes), then 7 bytes each: its time, the receipt's window, the new cost, and
-- the window and maximum of each limit to report. ARGV[2]: the given time, or nothing.
-- Returns a string: code (1 byte: 1 applied, 16 empty log), then 7 bytes each: time, newest, then used and oldest of each limit.
local call, pack, unpack_struct, sub = redis.call, struct.pack, struct.unpack, string.sub
local key, request, now = KEYS[1], ARGV[1], ARGV[2] and ARGV[2] + 0
if not now then
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
