-- Says whether something can be received. Returns {now, 1 or 0, next due}.
call('LTRIM', bell, 0, -1) -- first: a server without memory lets a script go on that has begun with this
if call('HGET', meta, 'state') == 'paused' then
  return {now, 0, -1} -- a resume rings
end
local next_one = next_due()
if next_one >= 0 and next_one <= now or call('LLEN', fresh) > 0 or call('ZCARD', back) > 0 then
  ring(bell)
  return {now, 1, next_one}
end
if next_one < 0 then
  call('DEL', bell)
end
return {now, 0, next_one}
