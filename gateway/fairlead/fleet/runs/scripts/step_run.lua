#!lua flags=allow-oom
-- KEYS: run, agents, states, ends, groups. ARGV: gen of the owner, seq of this step, ms for which the step prolongs the
-- ownership, the run's state, its counts, its reason, '1' if it has ended, ms for which it is kept then, '1' if all
-- waiting targets become not_started, the wish that is done, the number of targets, the number of blobs of agents of
-- which some join now and for each its number and the blob, then the number of starts and their indices, the number of
-- targets that are queued and their indices, the number of ends and for each its index, letter and blob, and the groups
-- as pairs of field and blob.
-- Returns {'ok', until, wish, followers} | {'fenced'} | {'gone'} | {'gap', seq}.
-- A step is stored whole or not at all, and once: a repeated one with the same seq changes nothing.
local row = redis.call('HMGET', KEYS[1], 'gen', 'seq', 'wish', 'w')
if not row[1] then return {'gone'} end
if row[1] ~= ARGV[1] then return {'fenced'} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local till = string.format('%.0f', now + tonumber(ARGV[3]))
local wish = row[3]
if wish == ARGV[10] then wish = '' end
if row[2] == ARGV[2] then
  redis.call('HSET', KEYS[1], 'until', till)
  return {'ok', till, wish, row[4]}
end
if tonumber(row[2]) + 1 ~= tonumber(ARGV[2]) then return {'gap', row[2]} end
local at = 13 + 2 * tonumber(ARGV[12])
if at > 13 then
  local blobs = redis.call('LLEN', KEYS[2])
  for i = 13, at - 1, 2 do
    if tonumber(ARGV[i]) < blobs then
      redis.call('LSET', KEYS[2], ARGV[i], ARGV[i + 1])
    else
      redis.call('RPUSH', KEYS[2], ARGV[i + 1])
    end
  end
  local known = redis.call('GET', KEYS[3]) or ''
  redis.call('SET', KEYS[3], known .. string.rep('w', tonumber(ARGV[11]) - #known))
  redis.call('HSET', KEYS[1], 'targets', ARGV[11])
  local life = redis.call('PTTL', KEYS[1])
  for i = 2, 3 do redis.call('PEXPIRE', KEYS[i], life) end
end
for _, letter in ipairs({'r', 'q'}) do
  local first, last = at + 1, at + tonumber(ARGV[at])
  while first <= last do -- targets start in their order, so most of them are one piece
    local count = 1
    while first + count <= last and tonumber(ARGV[first + count]) == tonumber(ARGV[first]) + count do count = count + 1 end
    redis.call('SETRANGE', KEYS[3], ARGV[first], string.rep(letter, count))
    first = first + count
  end
  at = last + 1
end
local count = tonumber(ARGV[at])
local fresh = count > 0 and redis.call('EXISTS', KEYS[4]) == 0
local ends = {}
for i = 0, count - 1 do
  redis.call('SETRANGE', KEYS[3], ARGV[at + 1 + 3 * i], ARGV[at + 2 + 3 * i])
  ends[#ends + 1] = ARGV[at + 3 + 3 * i]
  if #ends == 500 or i == count - 1 then
    redis.call('RPUSH', KEYS[4], unpack(ends))
    ends = {}
  end
end
at = at + 1 + 3 * count
if ARGV[9] == '1' then
  redis.call('SET', KEYS[3], (string.gsub(redis.call('GET', KEYS[3]), 'w', 'n')), 'KEEPTTL')
end
for i = at, #ARGV, 2 do redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'seq', ARGV[2], 'until', till, 'state', ARGV[4], 'counts', ARGV[5], 'reason', ARGV[6],
  'wish', wish)
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[1], 'ended', string.format('%.0f', now))
  for i = 1, 5 do redis.call('PEXPIRE', KEYS[i], ARGV[8]) end
elseif fresh then
  local life = redis.call('PTTL', KEYS[1])
  for i = 4, 5 do redis.call('PEXPIRE', KEYS[i], life) end
end
return {'ok', till, wish, row[4]}
