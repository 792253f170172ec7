
-- Takes the windows off the request, after head.lua, under a limit with a resolution: the windows of the limits of both policies,
-- shortest first, each with the smallest resolution among the limits that count an entry as old as the window before (7 bytes each, 0
-- if one of them is exact); and their number (1 byte).
local windows = sub(request, -1 - $LIMIT_LEN * string.byte(request, -1), -2)
request = sub(request, 1, -2 - #windows)
local shortest, finest = unpack_struct('>I7I7', windows)
