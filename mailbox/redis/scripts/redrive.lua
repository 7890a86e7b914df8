-- Sends a letter back to its mailbox, whose key KEYS[1] is. Returns 1, or 0 if there is no such letter.
-- ARGV: now, place of the letter, meta of the message, rings
local dead, letter = base .. ':dead', ARGV[2]
local raw, about = call('HGET', dead .. ':body', letter), call('HGET', dead .. ':about', letter)
if not raw then
  write_again() -- it may have been this call that has sent it back
  return 0
end
local from = string.find(raw, '\n', 1, true)
local place = call('INCR', base .. ':seq')
call('HSET', body, place, now .. ARGV[3] .. '\n' .. (from and string.sub(raw, from + 1) or raw))
call('RPUSH', fresh, place)
if about then
  call('HDEL', dead .. ':ids', cjson.decode(about).id)
end
for _, key in ipairs({':body', ':about', ':hold'}) do
  call('HDEL', dead .. key, letter)
end
for _, key in ipairs({':all', ':back', ':lease', ':delay'}) do
  call('ZREM', dead .. key, letter)
end
if ARGV[4] == '1' then
  ring(bell)
end
return 1
