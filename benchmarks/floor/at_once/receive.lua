-- As one_by_one/receive.lua, with one command for all of them.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', KEYS[4], unpack(over))
  redis.call('RPUSH', KEYS[2], unpack(over))
end
local ids = redis.call('LPOP', KEYS[2], ARGV[1])
if not ids then
  return {{}, {}}
end
local leases = {}
for index, id in ipairs(ids) do
  leases[2 * index - 1], leases[2 * index] = now + ARGV[2], id
end
redis.call('ZADD', KEYS[4], unpack(leases))
return {ids, redis.call('HMGET', KEYS[3], unpack(ids))}
