-- The fast path, after entry.lua: acquires and peeks with the limiter's own policy, one or several as one, in a log that grows or
-- slides. A single operation may also be an attempt or a record for which one entry goes, take over the newest entry (a resolution
-- without exact limits), or merge the entries that leave the exact limits. All else takes the general path, in the files after it.
-- For each operation `i`, count.lua and encode.lua run in a loop that ends with the first that is not common.
-- Every command, table, function or number converted to text shows in the server's time, so there are few of them here.
local flags = args[count + 3]
local is_single, plans, is_common, is_denied = not flags, flags and {}, false, false
-- newest: the log's newest entry. reply: the reply. entry: the new entry.
-- stays: the first entry that stays if older ones are removed. drops_one: whether only the oldest is removed.
-- merged: what entries merge into. gone: the first of these entries, or the entry that is removed instead.
-- t, longest, ttl, last, last_ttl: decide on the key's expiry.
-- `plans` keeps them for each of several operations.
local newest, reply, entry, stays, drops_one, merged, gone, t, longest, ttl, last, last_ttl
