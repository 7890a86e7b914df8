-- Brings back a chunk of what is due. Returns {now, birth, next due, places, letters}. ARGV: now, max_deliveries
local returned, letters = bring_back(tonumber(ARGV[2]))
if #returned > 0 then
  ring(bell)
end
return {now, call('HGET', meta, 'birth') or '', next_due(), returned, letters}
