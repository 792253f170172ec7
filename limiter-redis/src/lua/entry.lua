-- Entries, after head.lua.

-- The time, running total and cost of an entry. Fails on a member that no limiter wrote.
local function read(member)
  local length = #member
  if length >= LONG_LEN then
    local at, total = parse('>i7I5', member)
    local single, more = SHORT_LEN, SHORT_LEN
    if total >= SHORT_TOTAL_END then
      total = parse('>I7', member, LONG_TOTAL_PLACE)
      single, more = LONG_LEN, LONG_CALLER_LEN
    end
    if at < 0 and at >= -TIME_BIAS and total < TOTAL_END then
      if length == single or length == more then return at + TIME_BIAS, total, 1 end
      if length == single + 7 or length == more + 7 then return at + TIME_BIAS, total, (parse('>I7', member, length - 6)) end
    end
  end
  error('DAMAGED a member of ' .. length .. ' bytes is no entry of a log', 0)
end
