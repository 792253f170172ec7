-- One sorted set per log. An entry's score is its time; its member is
--   running total (9 bytes: 3 high, 6 low) | tag | id (8 bytes, or 16 if the caller chose it) | cost (7 bytes, unless 1)
-- with the tag's bits 1 denied, 2 caller's id, 4 cost given. Entries of one time sort by running total: as appended.
-- A caller's id is indexed by the member "i" .. id with the score -time - 1.
local call, key = redis.call, KEYS[1]
local byte, sub, format = string.byte, string.sub, string.format
local pack, unpack_struct = struct.pack, struct.unpack

local function damaged(member)
  -- An error is a line of text to the client.
  local shown = sub(member, 1, 40):gsub('[^ -~]', function(char) return format('\\x%02x', byte(char)) end)
  error('DAMAGED not an entry of a log: "' .. shown .. '"', 0)
end

-- The cost of an entry. Refuses what no limiter wrote.
local function cost_of(member, score)
  local tag = byte(member, 10)
  if tag and tag < 8 and score % 1 == 0 and score >= 0 and score < 2^53 then
    local length = tag % 4 < 2 and 18 or 26
    if tag < 4 then
      if #member == length then return 1 end
    elseif #member == length + 7 then
      return (unpack_struct('>I7', member, length + 1))
    end
  end
  return damaged(member)
end
