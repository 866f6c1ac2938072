#!lua
--include accept
-- KEYS: deadlines, then for each command agent row, open, cmd; all of one shard. ARGV: expires ms, retention ms, retry,
-- retain, valid until ms, follower, payload, open limit, when the command sweeper checks them first ms, the bytes of
-- results above which they are dropped soon after the end ('' for no limit), '1' to offer them; then id, agent and about
-- for each command. None has an Idempotency-Key.
-- Accepts commands of many agents that differ in nothing else, see accept.lua. A part of them may be refused, or have a
-- key with a value of another type, which `failed` says: those may be accepted once more by themselves.
-- Returns {'late'} | {'done', what became of each…}: {'offered', lease, gen, up, seen} | {'ok' | 'exists', the first nine
-- fields of the agent row…} | {'unknown'} | {'full', count} | {'failed'}.
local now = now_ms()
if now > tonumber(ARGV[5]) then return {'late'} end
local all = new_terms(now, ARGV[1], ARGV[2], ARGV[3], ARGV[4], '0', ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10],
  ARGV[11])
local answers, keys = {'done'}, {}
all.accepted = {}
for at = 12, #ARGV, 3 do
  local key = at - 10
  keys[1], keys[2], keys[3] = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  local done, word, row = pcall(accept, keys, ARGV[at], ARGV[at + 1], ARGV[at + 2], all, false)
  if not done then
    answers[#answers + 1] = {'failed'}
  elseif word == 'offered' then
    answers[#answers + 1] = {word, row[1], row[2], row[6], row[7]}
  elseif word == 'full' then
    answers[#answers + 1] = {word, row}
  else
    answers[#answers + 1] = row and {word, unpack(row, 1, 9)} or {word}
  end
end
if #all.accepted > 0 then redis.call('ZADD', KEYS[1], unpack(all.accepted)) end
return answers
