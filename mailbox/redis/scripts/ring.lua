-- Rings if there is something for a receive, or room for a send. ARGV: now, max_size if it is about room
local max_size = tonumber(ARGV[2])
if max_size then
  if call('HLEN', body) < max_size then
    ring(base .. ':room')
  end
elseif call('LLEN', fresh) > 0 or call('ZCARD', back) > 0 or next_due() >= 0 then
  ring(bell)
end
return 1
