-- Applies one operation, or several as one: section "Several operations" of the contract. The last file of the script, after head.lua,
-- entry.lua, fast.lua, log.lua, evaluate.lua and append.lua.
--
-- ARGV[#KEYS + 3] has a byte for each of several operations, the sum of ADVISORY and KEPT. A single one has none.
--
-- Returns the reply to one operation, a list of the replies to several, or LATE alone. A log that cannot be read has FAILED, the number
-- of its operation (4 bytes) and the error's text: in the list if the operation is advisory, and otherwise as the whole reply.
local operations, flags = #KEYS, ARGV[#KEYS + 3]
local is_single = not flags

-- After a stop, the server has many of these to catch up with, and nobody waits for them.
if now >= parse('>I7', ARGV[1], DEADLINE_PLACE) then return string.char(LATE) end

-- 1. Evaluate all, by reads alone. `fast[i]` is what `decide_fast` returns, `slow[i]` what `evaluate` does.
local fast, slow, replies = {}, {}, {}
local function look(i)
  local newest = call('ZRANGE', KEYS[i], '0', '0', 'REV')[1]
  fast[i] = not is_single and { decide_fast(KEYS[i], ARGV[i], newest, false) }
  if is_single or fast[i][1] == nil then slow[i] = evaluate(KEYS[i], ARGV[i], newest) end
end
for i = 1, operations do
  local is_read, failure = true, nil
  if is_single then look(i) else is_read, failure = pcall(look, i) end
  if not is_read then
    failure = pack('>BI4', FAILED, i) .. (type(failure) == 'table' and failure.err or failure)
    if not has(byte(flags, i), ADVISORY) then return failure end
    replies[i] = failure
  end
end

-- 2. Who denies all others: the first that repeats a denial, because it did so before; otherwise the first that denies.
local denier
for i = 1, operations do
  local op = slow[i]
  local denies = not replies[i] and (not op and not fast[i][1] or op and op.denies)
  if denies and (is_single or not has(byte(flags, i), ADVISORY)) then
    denier = denier or i
    if op and op.earlier then
      denier = i
      break
    end
  end
end

-- 3. Append, and reply.
for i = 1, operations do
  local counts = not denier or denier == i or has(byte(flags, i), KEPT)
  if slow[i] then
    replies[i] = finish(slow[i], slow[i].appends and counts)
  elseif not replies[i] and (counts or not fast[i][3]) then
    replies[i] = finish_fast(KEYS[i], unpack(fast[i], 1, FAST_VALUES))
  elseif not replies[i] then
    -- Another one denies: the same as a peek.
    local reply = fast[i][2]
    replies[i] = sub(reply, 1, -2) .. string.char(byte(reply, -1) - APPENDED)
  end
end
return is_single and replies[1] or replies
