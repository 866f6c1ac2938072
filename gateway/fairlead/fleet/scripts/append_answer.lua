#!lua flags=allow-oom
--include answer
-- KEYS: cmd, open, deadlines, outcome. ARGV: agent, gen, next_n, sum, few, blob. See answer.lua, and what is stored if it
-- returns nil: append_results.lua then does that. It has no functions of record.lua, since each function that a script has
-- takes time, whether it is called or not.
local keys = {KEYS[1], nil, nil, KEYS[4], KEYS[2], KEYS[3]}
return append_answer(keys, unpack(ARGV)) or false
