
-- Applies operations on several logs as one: section "Several operations" of the contract. `operate` is the single operation of
-- apply_fast.lua and apply.lua.
--
-- KEYS are the logs. ARGV[1] has a byte for each: the sum of ADVISORY and KEPT. ARGV[3]: microseconds since the first attempt, or ''.
-- Then the requests follow, and then the windows and resolutions.
--
-- Returns a list of the replies; or LATE alone. The text of an error follows FAILED and the operation's number (1 byte). It is in the
-- list if the operation is advisory, and otherwise all of the reply.
local keys, args, flags, since, total, byte, char, protected = KEYS, ARGV, ARGV[1], ARGV[3], #KEYS, string.byte, string.char, pcall
if since == '' then since = nil end
local _, deadline = unpack_struct('>BI7', args[4])
if now >= deadline then return char($LATE) end

-- The replies; the operations that have been read; the first that denies; the first failure; and whether something may be written.
local replies, read, denied, failure, writes = {}, 0, nil, nil, false

local function has(i, flag) return byte(flags, i) % (2 * flag) >= flag end

-- Notes that an operation does not fit.
local function note(i)
  if not denied and not has(i, $ADVISORY) and byte(args[3 + i]) % $KINDS ~= $RECORD then denied = i end
end

local evaluate

-- Is called by an operation before it writes. Reads all operations after it, and returns whether it appends.
local function pause(fits)
  local i = read
  if not fits then note(i) end
  if i < total then evaluate() end
  writes = not failure
  return writes and (not denied or denied == i or has(i, $KEPT))
end

-- Reads the next operation, and before it writes, those after it.
function evaluate()
  while read < total and not failure do
    read = read + 1
    local i, request, windows = read, args[3 + read], args[3 + total + read]
    if windows == '' then windows = nil end
    local newest = redis.pcall('ZRANGE', keys[i], '0', '0', 'REV')
    local is_done, reply = not newest.err, newest
    newest = newest[1]
    if is_done then is_done, reply = protected(operate, keys[i], request, windows, since, newest, pause) end
    if is_done and reply then
      if read == i and byte(reply) % (2 * $ADMITTED) < $ADMITTED then note(i) end
    elseif not is_done then
      if writes then error(reply, 0) end
      reply = char($FAILED, i) .. (type(reply) == 'table' and reply.err or reply)
      if not has(i, $ADVISORY) then failure = reply end
    elseif not failure then
      -- Another one denies: a peek.
      local kind = byte(request)
      reply = operate(keys[i], char(kind - kind % $KINDS + $PEEK) .. sub(request, 2), windows, since, newest)
    end
    replies[i] = reply
  end
end

evaluate()
return failure or replies
