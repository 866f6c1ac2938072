#!lua flags=allow-oom
-- KEYS: tenant's agents. ARGV: agent, now ms, the most agents.
-- Counts an agent that is about to enrol. The same one may be counted again.
-- Returns {'ok'} | {'full', how many there are}.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local count = redis.call('ZCARD', KEYS[1])
  if count >= tonumber(ARGV[3]) then return {'full', count} end
end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
return {'ok'}
