#!lua flags=allow-oom
-- KEYS: cmd. Returns the fields of the record and their values, except the payload, which may have 512 KiB and is
-- needed only by the agent, and the results; an empty list if there is no record.
local fields, record = {}, {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= 'payload' and field ~= 'few' then fields[#fields + 1] = field end
end
if #fields == 0 then return record end
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
  record[#record + 1] = fields[i]
  record[#record + 1] = value
end
return record
