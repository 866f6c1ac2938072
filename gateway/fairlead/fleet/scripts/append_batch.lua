#!lua flags=allow-oom
--include record
--include append
--include answer
-- KEYS: deadlines, kept, kept_until, kept_bytes, then for each command cmd, out, in, outcome, open, the agent's row; all
-- of one shard. ARGV: output limit in bytes, then for each command agent, gen, the number of arguments that are its
-- steps, and these; or, for a whole answer, agent, gen, 'w', next_n, sum, few and blob. See append.lua and answer.lua.
-- Stores what the agents have sent of many commands. Returns for each command what append_results.lua would,
-- {followers, number of results} for a whole answer of a command of which nothing was stored, or {'failed'} if a key of
-- it has a value of another type: it may be repeated by itself.
local keys = {[6] = KEYS[1], [8] = KEYS[2], [9] = KEYS[3], [10] = KEYS[4], ended = {}}
local limit, answers, at, key = tonumber(ARGV[1]), {}, 2, 5

local function append_whole(agent, gen, next_n, sum, few, blob)
  local followers = append_answer(keys, agent, gen, next_n, sum, few, blob)
  if followers then return {followers, tonumber(next_n)} end
  local steps = {}
  if few ~= '' then
    local results = cmsgpack.unpack(few)
    for i = 2, #results, 3 do
      steps[#steps + 1] = 'c'
      for k = i, i + 2 do steps[#steps + 1] = results[k] end
    end
  end
  for _, step in ipairs({'e', next_n, 'ok', blob, ''}) do steps[#steps + 1] = step end
  return append(keys, agent, tonumber(gen), limit, steps, 1, #steps)
end

while at <= #ARGV do
  for i = 1, 5 do keys[i] = KEYS[key + i - 1] end
  keys[7] = KEYS[key + 5]
  local done, answer, last
  if ARGV[at + 2] == 'w' then
    last = at + 6
    done, answer = pcall(append_whole, ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
  else
    last = at + 2 + tonumber(ARGV[at + 2])
    done, answer = pcall(append, keys, ARGV[at], tonumber(ARGV[at + 1]), limit, ARGV, at + 3, last)
  end
  answers[#answers + 1] = done and answer or {'failed'}
  at, key = last + 1, key + 6
end
if #keys.ended > 0 then redis.call('ZREM', KEYS[1], unpack(keys.ended)) end
return answers
