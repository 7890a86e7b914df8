-- Appends, message by message. KEYS: last id, line, bodies, leases. ARGV: bodies…
for _, body in ipairs(ARGV) do
  local id = redis.call('INCR', KEYS[1])
  redis.call('HSET', KEYS[3], id, body)
  redis.call('RPUSH', KEYS[2], id)
end
