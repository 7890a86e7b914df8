-- Says whether something can be received. Returns {now, 1 or 0, next due}.
local state = call('HGET', meta, 'state')
local next_one = next_due()
local there = next_one >= 0 and next_one <= now or call('LLEN', fresh) > 0 or call('ZCARD', back) > 0
if there and state ~= 'paused' then
  ring(bell)
  return {now, 1, next_one}
end
call('DEL', bell)
return {now, 0, next_one}
