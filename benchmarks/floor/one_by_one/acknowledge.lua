-- Deletes, without regard to the lease. KEYS: as of send.lua. ARGV: ids…
for _, id in ipairs(ARGV) do
  redis.call('ZREM', KEYS[4], id)
  redis.call('HDEL', KEYS[3], id)
end
