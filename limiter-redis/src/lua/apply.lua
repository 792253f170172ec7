-- The end of the general path, after append.lua: applies one operation, or several as one. See the section "Several operations" of the
-- contract.
--
-- ARGV[#KEYS + 3] has a byte for each of several operations, the sum of ADVISORY and KEPT. A single one has none.
--
-- The reply is that to one operation, a list of the replies to several, or the clock and LATE. A log that cannot be read has FAILED, the number
-- of its operation (4 bytes) and the error's text: in the list if the operation is advisory, and otherwise as the whole reply.
-- After a stop, the server has many of these to catch up with, and nobody waits for them.
if now >= parse('>I7', args[1], DEADLINE_PLACE) then return pack('>I7I7B', now, 0, LATE) end

-- 1. Evaluate all, by reads alone.
local operations, denier = {}, nil
plans = {}
if is_single then operations[1] = evaluate(keys[1], args[1], newest) end
for i = 1, is_single and 0 or count do
  local function look() operations[i] = evaluate(keys[i], args[i], call('ZRANGE', keys[i], '0', '0', 'REV')[1]) end
  local is_read, failure = pcall(look)
  if not is_read then
    plans[i] = { reply = pack('>BI4', FAILED, i) .. (type(failure) == 'table' and failure.err or failure) }
    if not has(byte(flags, i), ADVISORY) then return plans[i].reply end
  end
end

-- 2. The denier: the first operation that repeats a denial, because it denied before; otherwise the first that denies.
for i = 1, count do
  local op = operations[i]
  if op and op.denies and (is_single or not has(byte(flags, i), ADVISORY)) then
    denier = denier or i
    if op.earlier then
      denier = i
      break
    end
  end
end

-- 3. Append, and plan the rest.
for i = 1, count do
  local op, counts = operations[i], not denier or denier == i or has(byte(flags, i), KEPT)
  if op then plans[i] = finish(op, op.appends and counts) end
end
