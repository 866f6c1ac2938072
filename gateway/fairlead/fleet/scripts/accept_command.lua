#!lua
--include accept
-- KEYS: agent row, open, cmd, deadlines, and outcome if the command has an Idempotency-Key. ARGV: what accept.lua names,
-- then id, agent, about, '1' to accept it although the agent has no row.
-- Accepts a command, see accept.lua. Returns {'late'}, or what accept.lua says.
return answer(KEYS[1], accept(KEYS, ARGV[12], ARGV[13], ARGV[14], ARGV[15] == '1'))
