-- Counts. Returns {now, ready, leased, delayed, dead, when the oldest that is ready was sent, or ''}.
local due = {call('ZCOUNT', lease, '-inf', now), call('ZCOUNT', delay, '-inf', now)}
local oldest
local function older(place)
  if place and (not oldest or tonumber(place) < tonumber(oldest)) then
    oldest = place
  end
end
older(call('LINDEX', fresh, 0))
older(call('ZRANGE', back, 0, 0)[1])
for index, key in ipairs({lease, delay}) do
  if due[index] > 0 then
    for _, place in ipairs(call('ZRANGEBYSCORE', key, '-inf', now)) do
      older(place)
    end
  end
end
local sent_at = oldest and string.match(call('HGET', body, oldest) or '', '^(%d+)') or ''
local ready = call('LLEN', fresh) + call('ZCARD', back) + due[1] + due[2]
local leased, delayed = call('ZCARD', lease) - due[1], call('ZCARD', delay) - due[2]
return {now, ready, leased, delayed, call('HLEN', base .. ':dead:body'), sent_at}
