#!lua flags=allow-oom
--include record
--include append
-- KEYS: deadlines, kept, kept_until, kept_bytes, then for each command cmd, out, in, outcome, open, the agent's row; all
-- of one shard. ARGV: output limit in bytes, then for each command agent, gen, the number of arguments that are its
-- steps, and these. See append.lua.
-- Stores what the agents have sent of many commands. Returns for each command what append_results.lua would, or
-- {'failed'} if a key of it has a value of another type: it may be repeated by itself.
local keys = {[6] = KEYS[1], [8] = KEYS[2], [9] = KEYS[3], [10] = KEYS[4], ended = {}}
local limit, answers, at, key = tonumber(ARGV[1]), {}, 2, 5
while at <= #ARGV do
  for i = 1, 5 do keys[i] = KEYS[key + i - 1] end
  keys[7] = KEYS[key + 5]
  local last = at + 2 + tonumber(ARGV[at + 2])
  local done, answer = pcall(append, keys, ARGV[at], tonumber(ARGV[at + 1]), limit, ARGV, at + 3, last)
  answers[#answers + 1] = done and answer or {'failed'}
  at, key = last + 1, key + 6
end
if #keys.ended > 0 then redis.call('ZREM', KEYS[1], unpack(keys.ended)) end
return answers
