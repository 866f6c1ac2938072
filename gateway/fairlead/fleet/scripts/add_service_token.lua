#!lua flags=allow-oom
-- KEYS: service tokens. ARGV: id, token as JSON, new revision, limit of tokens of the tenant, now (ms), tenant, limit of
-- all tokens.
-- Removes tokens that have expired a week ago, and the last uses of tokens that are gone.
-- Returns 1, or 0 if there are too many tokens.
local all, count, own, now = redis.call('HGETALL', KEYS[1]), 0, 0, tonumber(ARGV[5])
local known = {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 6) == 'token:' then
    local fine, token = pcall(cjson.decode, all[i + 1])
    if fine and type(token) == 'table' and (tonumber(token.expires) or 0) + 604800000 < now then
      redis.call('HDEL', KEYS[1], all[i])
    else
      known[string.sub(all[i], 7)] = true
      count = count + 1
      if not fine or type(token) ~= 'table' or (token.tenant or '') == ARGV[6] then own = own + 1 end
    end
  end
end
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 5) == 'used:' and not known[string.sub(all[i], 6)] then redis.call('HDEL', KEYS[1], all[i]) end
end
if own >= tonumber(ARGV[4]) or count >= tonumber(ARGV[7]) then return 0 end
redis.call('HSET', KEYS[1], 'token:' .. ARGV[1], ARGV[2], 'revision', ARGV[3])
return 1
