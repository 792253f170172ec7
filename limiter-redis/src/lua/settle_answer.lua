
local reply = { pack('>BI7I7', (applied and 1 or 0) + (last < 0 and 16 or 0), t, last < 0 and 0 or last) }
for i = 38, #request, 14 do
  local window, max = unpack_struct('>I7I7', request, i)
  local used, oldest, rest = count(window)
  oldest = frees(window, max, used, oldest, rest, 0)
  reply[#reply + 1] = pack('>I7I7', math.min(used, 9007199254740992), oldest)
end
return table.concat(reply)
