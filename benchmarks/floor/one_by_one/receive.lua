-- Leases what is there; what was not acknowledged in time goes to the end of the line. Returns {ids, bodies}.
-- KEYS: as of send.lua. ARGV: limit, milliseconds
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('ZREM', KEYS[4], id)
  redis.call('RPUSH', KEYS[2], id)
end
local ids, bodies = {}, {}
for index = 1, ARGV[1] do
  local id = redis.call('LPOP', KEYS[2])
  if not id then
    break
  end
  redis.call('ZADD', KEYS[4], now + ARGV[2], id)
  ids[index], bodies[index] = id, redis.call('HGET', KEYS[3], id)
end
return {ids, bodies}
