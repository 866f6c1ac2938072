#!lua flags=allow-oom
-- KEYS: dead_letters, dead_letter_bytes. ARGV: letter, most letters, most bytes, how long they are kept in ms.
-- Returns how many old letters were removed for this one.
redis.call('XADD', KEYS[1], '*', 'l', ARGV[1])
local bytes, removed = redis.call('INCRBY', KEYS[2], #ARGV[1]), 0
while redis.call('XLEN', KEYS[1]) > tonumber(ARGV[2]) or (bytes > tonumber(ARGV[3]) and redis.call('XLEN', KEYS[1]) > 1) do
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[1], oldest[1])
  bytes, removed = redis.call('DECRBY', KEYS[2], #oldest[2][2]), removed + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return removed
