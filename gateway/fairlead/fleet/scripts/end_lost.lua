#!lua flags=allow-oom
-- KEYS: cmd, outcome, aside. ARGV: agent, expires ms, retention ms, retry, retain, remembered ms, about, end blob, bytes
-- of results above which they are dropped soon after the end ('' for no limit).
-- A node says again after a failover that it had accepted a command. If its record is gone, it is written as one that
-- failed, because an agent may have run the command: nobody knows, and it must not run again under its key.
-- Returns {1 if the record was gone, otherwise 0, number of steps that others have set aside}: these know how it ended.
local aside = redis.call('LLEN', KEYS[3])
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return {0, aside} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- For the fields, see record.lua.
redis.call('HSET', KEYS[1], 't:' .. ARGV[1], 'failed|0|0|0|', 'sum', '0|0|0|0', 'terms', table.concat(ARGV, '|', 2, 6),
  'w', '', 'about', ARGV[7], 'payload', '', 'e:' .. ARGV[1], ARGV[8])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'results_limit', ARGV[9]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local remembered = tonumber(ARGV[6])
if remembered - now > tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], string.format('failed %.0f', now), 'PX', string.format('%.0f', remembered - now))
end
return {1, aside}
