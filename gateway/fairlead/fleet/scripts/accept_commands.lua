#!lua
--include accept
-- KEYS: deadlines, then for each command agent row, open, cmd; all of one shard. ARGV: what accept.lua names, then id,
-- agent and about for each command. None has an Idempotency-Key.
-- Accepts commands of many agents that differ in nothing else, see accept.lua. A part of them may be refused, or have a
-- key with a value of another type, which `failed` says: those may be accepted once more by themselves.
-- Returns {'late'} | {'done', what became of each…}: what accept.lua says, or {'failed'}.
local function accept_one(keys, at, due)
  return answer(keys[1], accept(keys, ARGV[at], ARGV[at + 1], ARGV[at + 2], false, due))
end

local answers, keys, due = {'done'}, {}, {}
for at = 12, #ARGV, 3 do
  local key = at - 10
  keys[1], keys[2], keys[3] = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  local done, one = pcall(accept_one, keys, at, due)
  answers[#answers + 1] = done and one or {'failed'}
end
if #due > 0 then redis.call('ZADD', KEYS[1], unpack(due)) end
return answers
