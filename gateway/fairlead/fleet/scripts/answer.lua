-- Stores the whole answer of an agent that has ended its command as `ok`, with few results or none: what append.lua would
-- store of an open command of which nothing is stored, in as few calls and with as little work as there is for it.
-- `next_n`, `sum` and `few` are what the record has then ('' for no results), `blob` is the end; for the fields see
-- record.lua. The keys are those of finish_row in record.lua, of which cmd, outcome, open and deadlines are used. With
-- `keys.ended` the caller removes the members that are added there from the deadline queue.
-- It repeats the end of finish_row without its functions, since each function that a script has takes time, whether it is
-- called or not. A change of one is a change of both.
-- Returns the followers; or nil, and has changed nothing, if the record is any other than that of such a command.
local function append_answer(keys, agent, gen, next_n, sum, few, blob)
  local cmd = keys[1]
  local rec = redis.call('HMGET', cmd, 't:' .. agent, 'sum', 'terms', 'w', 'in', 'results_limit')
  if rec[2] ~= '1|0|0|0' or rec[5] then return nil end
  local owner, attempt, memory = string.match(rec[1] or '', '^%a+|(%d+)|0|(%d+)|(.*)$')
  if owner ~= gen then return nil end
  local retention, remembered = string.match(rec[3], '^%d+|(%d+)|%a+|all|(%d+)$')
  if not retention then return nil end
  if rec[6] and #blob + tonumber(string.match(sum, '(%d+)|0$')) > tonumber(rec[6]) then return nil end
  if attempt == '0' then attempt = '1' end
  local row = 'ok|' .. gen .. '|' .. next_n .. '|' .. attempt .. '|' .. memory
  if few == '' then
    redis.call('HSET', cmd, 't:' .. agent, row, 'sum', sum, 'e:' .. agent, blob, 'payload', '')
  else
    redis.call('HSET', cmd, 't:' .. agent, row, 'sum', sum, 'e:' .. agent, blob, 'payload', '', 'few', few)
  end
  local id = string.match(cmd, '}:(.*)$')
  redis.call('HDEL', keys[5], id)
  if keys.ended then
    keys.ended[#keys.ended + 1] = id .. ' ' .. agent
  else
    redis.call('ZREM', keys[6], id .. ' ' .. agent)
  end
  redis.call('PEXPIRE', cmd, retention)
  if remembered ~= '0' then
    local t = redis.call('TIME')
    local now = t[1] * 1000 + math.floor(t[2] / 1000)
    local left = tonumber(remembered) - now
    if left > tonumber(retention) then
      redis.call('SET', keys[4], string.format('ok %.0f', now), 'PX', string.format('%.0f', left))
    end
  end
  return rec[4] or ''
end
