-- As one_by_one/send.lua, with one command for all of them.
local first = redis.call('INCRBY', KEYS[1], #ARGV) - #ARGV + 1
local ids, bodies = {}, {}
for index, body in ipairs(ARGV) do
  ids[index] = first + index - 1
  bodies[2 * index - 1], bodies[2 * index] = ids[index], body
end
redis.call('HSET', KEYS[3], unpack(bodies))
redis.call('RPUSH', KEYS[2], unpack(ids))
