#!lua flags=allow-oom
--include answer
-- KEYS: cmd, open, deadlines, outcome. ARGV: agent, gen, next_n, sum, few, blob. See answer.lua, and what is stored if it
-- returns nil: append_results.lua then does that.
local keys = {KEYS[1], nil, nil, KEYS[4], KEYS[2], KEYS[3]}
return append_answer(keys, unpack(ARGV)) or false
