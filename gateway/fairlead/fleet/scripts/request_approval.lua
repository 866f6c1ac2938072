#!lua flags=allow-oom
-- KEYS: approvals, approval requests. ARGV: id, digest of the subject, digest of the terms, how long it is valid (ms),
-- most requests, most of one subject, the request as JSON.
-- Keeps a request for an approval. Returns its id, or that of an equal one of this subject that waits or is approved; or
-- `full` or `own` if there are too many. An entry is `state expires subject terms command decision`; `-` stands for no
-- command. What has expired is removed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries, count, own = redis.call('HGETALL', KEYS[1]), 0, 0
for i = 1, #entries, 2 do
  local state, expires, subject, terms = string.match(entries[i + 1], '^(%S+) (%d+) (%S+) (%S+) ')
  if tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], entries[i])
    redis.call('HDEL', KEYS[2], entries[i])
  else
    count = count + 1
    if subject == ARGV[2] then
      own = own + 1
      if terms == ARGV[3] and (state == 'pending' or state == 'approved') then return entries[i] end
    end
  end
end
if count >= tonumber(ARGV[5]) then return 'full' end
if own >= tonumber(ARGV[6]) then return 'own' end
local expires = now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], string.format('pending %.0f %s %s - ', expires, ARGV[2], ARGV[3]))
redis.call('HSET', KEYS[2], ARGV[1], ARGV[7])
return ARGV[1]
