-- Takes a process out of those that share a mailbox. ARGV: now, holder, only if it is dead
if ARGV[3] == '1' then
  local seen = call('ZSCORE', root .. ':members', ARGV[2])
  if seen and tonumber(seen) + DEAD_AFTER > server_time() then
    return 0
  end
end
call('HDEL', root .. ':member', ARGV[2])
call('SREM', root .. ':waiting', ARGV[2])
return call('ZREM', root .. ':members', ARGV[2])
