#!lua
--include accept
-- KEYS: agent row, open, cmd, outcome, deadlines. ARGV: id, agent, expires ms, retention ms, retry, retain, until when an
-- Idempotency-Key is bound to the command ms (0 if it has none), valid until ms, follower, about, payload, open limit,
-- when the command sweeper checks it first ms, '1' to accept it although the agent has no row, the bytes of
-- results above which they are dropped soon after the end ('' for no limit), '1' to offer it.
-- Accepts a command, see accept.lua. Returns {'offered', lease, gen, up, seen, sid} | {'ok' | 'exists', the first nine
-- fields of the agent row…} | {'unknown'} | {'late'} | {'full', count}.
local now = now_ms()
if now > tonumber(ARGV[8]) then return {'late'} end
local all = new_terms(now, ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[9], ARGV[11], ARGV[12], ARGV[13], ARGV[15],
  ARGV[16])
local word, row = accept(KEYS, ARGV[1], ARGV[2], ARGV[10], all, ARGV[14] == '1')
if word == 'offered' then return {word, row[1], row[2], row[6], row[7], row[5]} end
if word == 'full' then return {word, row} end
return row and {word, unpack(row, 1, 9)} or {word}
