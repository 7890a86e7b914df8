-- Rings if there is something for a receive, or room for a send. ARGV: now, max_size if it is about room
local max_size = tonumber(ARGV[2])
call('ZREM', root .. ':members', '') -- first: a server without memory lets a script go on that has begun with this
if max_size then
  if call('HLEN', body) < max_size then
    pass_room(0)
  end
elseif call('LLEN', fresh) > 0 or call('ZCARD', back) > 0 or next_due() >= 0 then
  ring(bell)
end
return 1
