#!lua
-- KEYS: cmd, out, in, outcome. ARGV: agent, up to when deadlines have passed (ms of Redis TIME), end blob for one that has.
-- What a target whose time has come needs: one that the agent has had, and whose deadline has passed, ends here as
-- `timeout`; of any other the caller is told all that it decides by.
-- Returns {'gone'} | {'over', state, followers} | {'ended', followers, about} | {'open', field, value …} of the record but its payload.
-- Thousands may have one deadline, so this cuts out of the packed fields (see record.lua) the little that it needs: that, no
-- TIME and one write instead of two or three (which Redis wraps in MULTI and EXEC for its file) take half of the server's
-- time. What record.lua defines is made anew in each run, and so only where it is needed.
local SOON = 30000 -- ms
local field, passed = 't:' .. ARGV[1], tonumber(ARGV[2])
local rec = redis.call('HMGET', KEYS[1], field, 'sum', 'terms', 'w', 'about')
if not rec[1] then return {'gone'} end
local state = string.match(rec[1], '^%a+')
if state ~= 'running' and state ~= 'sent' and state ~= 'queued' then return {'over', state, rec[4]} end
local expires = tonumber(string.match(rec[3], '^%d+'))
if state ~= 'queued' and passed >= expires then
  -- create_command.lua gave the record its deadline, its retention and a minute to live, and no more than that without a key.
  if string.sub(rec[2], 1, 2) == '1|' and string.sub(rec[3], -2) == '|0' and passed - expires < SOON then
    redis.call('HSET', KEYS[1], field, 'timeout' .. string.sub(rec[1], #state + 1), 'sum', '0' .. string.sub(rec[2], 2),
      'e:' .. ARGV[1], ARGV[3])
  else
--include record
    finish_row(KEYS, ARGV[1], parse_row(rec[1]), 'timeout', ARGV[3], parse_sum(rec[2]), rec[3])
  end
  return {'ended', rec[4], rec[5]}
end
local open = {'open', field, rec[1], 'sum', rec[2], 'terms', rec[3], 'about', rec[5]}
local asked = redis.call('HMGET', KEYS[1], 'in', 'cancel')
if asked[1] then open[#open + 1], open[#open + 2] = 'in', asked[1] end
if asked[2] then open[#open + 1], open[#open + 2] = 'cancel', asked[2] end
return open
