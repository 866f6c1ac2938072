#!lua flags=allow-oom
--include record
--include append
-- KEYS: those of finish_row in record.lua. ARGV: agent, gen, output limit in bytes, then the steps. See append.lua.
return append(KEYS, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV, 4, #ARGV)
