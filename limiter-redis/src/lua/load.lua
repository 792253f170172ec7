
-- The rest of the arguments of a script with one key, and the newest member of its log.
local windows, since = ARGV[3], ARGV[4]
if windows == '' then windows = nil end
local newest = call('ZRANGE', key, '0', '0', 'REV')[1]
-- The step of apply_all.lua before an operation writes; see there.
local pause
