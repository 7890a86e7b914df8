-- Sends all or none. Returns {birth, place of the first}, or {'full'}, or {'draining'}.
-- ARGV: now, sender, request, birth if there is none, max_size, process if it will wait, hops if it was woken, rings,
--       dedup id, dedup window, delay, meta of each, bodies…
local sender, request = ARGV[2], ARGV[3]
local max_size, waits, hops, rings = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
local dedup_id, window, after, about = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12]
local FIRST = 13
-- Milliseconds for which it is known at least what a sender has sent last.
local REMEMBERED = 60000
local count = #ARGV - FIRST + 1
local real = ARGV[1] == '' and now or server_time()

local known = call('HMGET', meta, 'birth', 'state')
local birth = known[1]
if not birth then
  birth = ARGV[4]
  call('HSET', meta, 'birth', birth)
end
-- The same one may come again, because the answer to it was lost; and the first try may come after the second, or even
-- after later ones, when it is no longer waited for. What is known of it is written once more, so that replicas have
-- something to confirm; first comes what a server without memory lets a script go on that has begun with.
local sent = base .. ':sent'
local number, place = string.match(call('HGET', sent, sender) or '', '^(%d+):(%d+)')
if number and tonumber(number) >= tonumber(request) then
  call('HDEL', sent, '')
  call('HSET', sent, sender, number .. ':' .. place .. ':' .. real)
  return {birth, place}
end
if known[2] == 'draining' then
  return {'draining'}
end
if dedup_id ~= '' then
  local old = call('ZRANGEBYSCORE', base .. ':until', '-inf', now, 'LIMIT', 0, CHUNK)
  if #old > 0 then
    call('ZREM', base .. ':until', unpack(old))
    call('HDEL', base .. ':dedup', unpack(old))
  end
  local place = call('HGET', base .. ':dedup', dedup_id)
  if place and tonumber(call('ZSCORE', base .. ':until', dedup_id) or 0) > now then
    call('HDEL', base .. ':dedup', '')
    call('HSET', base .. ':dedup', dedup_id, place)
    return {birth, place}
  end
end
if max_size and call('HLEN', body) + count > max_size then
  if waits ~= '' then
    call('SADD', base .. ':waiting', waits)
  end
  if hops and hops < MOST_HOPS and call('HLEN', body) < max_size then
    pass_room(hops + 1) -- there is room for another who waits, though not for this
  end
  return {'full'}
end

local first = call('INCRBY', base .. ':seq', count) - count + 1
local head = now .. about .. '\n'
if count == 1 then
  call('HSET', body, first, head .. ARGV[FIRST])
  if after > 0 then
    call('ZADD', delay, now + after, first)
  else
    call('RPUSH', fresh, first)
  end
else
  for from = 0, count - 1, CHUNK do
    local bodies, places = {}, {}
    for index = from, math.min(from + CHUNK, count) - 1 do
      local place = first + index
      bodies[#bodies + 1] = place
      bodies[#bodies + 1] = head .. ARGV[FIRST + index]
      places[#places + 1] = place
    end
    call('HSET', body, unpack(bodies))
    call('RPUSH', fresh, unpack(places))
  end
end
if call('HSET', sent, sender, request .. ':' .. first .. ':' .. real) == 1 then
  local senders = base .. ':senders'
  call('ZADD', senders, real, sender)
  if call('HLEN', sent) > CHUNK then
    -- Those whose processes are gone, for the most part. Others stay for as long as a call may be repeated: when they
    -- have sent last stands beside what they have sent, so that it costs a send nothing to keep them in order.
    for _, other in ipairs(call('ZRANGEBYSCORE', senders, '-inf', real - REMEMBERED, 'LIMIT', 0, 10)) do
      local used = tonumber(string.match(call('HGET', sent, other) or '', ':(%d+)$') or 0)
      if used > real - REMEMBERED then
        call('ZADD', senders, used, other)
      else
        call('ZREM', senders, other)
        call('HDEL', sent, other)
      end
    end
  end
end
if dedup_id ~= '' then
  call('HSET', base .. ':dedup', dedup_id, first)
  call('ZADD', base .. ':until', now + window, dedup_id)
end
if after > 0 then
  ring_if_earliest(now + after)
elseif rings then
  ring(bell)
end
if hops and max_size and call('HLEN', body) < max_size then
  pass_room(0)
end
return {birth, first}
