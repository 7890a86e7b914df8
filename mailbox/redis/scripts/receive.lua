-- Leases what is first in line. Returns {now, birth, state, next due, silent processes and when they were heard of last,
-- letters, places, bodies, count}.
-- ARGV: now, limit, seconds of the lease in ms, receipt, holder, max_deliveries
local limit, lasts, receipt, holder, most = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local known = call('HMGET', meta, 'birth', 'state')
local birth, state = known[1] or '', known[2] or ''

-- Returns what is first of what came back, with what is known of it; and how many were buried on the way, which had been
-- delivered as often as they may be: it may be less often than when they came back.
local function first_back(limit, most, letters)
  local buried = 0
  while true do
    local returned = call('ZRANGE', back, 0, limit - 1)
    if #returned == 0 then
      return returned, {}, buried
    end
    local holds, kept, known = call('HMGET', hold, unpack(returned)), {}, {}
    for index, place in ipairs(returned) do
      local count, err = held(holds[index])
      if most and count >= most then
        call('ZREM', back, place)
        exhaust(letters, place, count, err)
        buried = buried + 1
      else
        kept[#kept + 1] = place
        known[#kept] = holds[index]
      end
    end
    if #kept == #returned or buried >= CHUNK then
      return kept, known, buried
    end
  end
end

-- Processes that should have given a sign of life; those that come to be silent later are seen to by notifiers.
local silent = {}
if holder ~= '' then
  silent = call('ZRANGEBYSCORE', root .. ':members', '-inf', now - SILENT_AFTER, 'WITHSCORES', 'LIMIT', 0, 10)
end

local _, letters = bring_back(most)
local places, taken_back = {}, {}
local alone, more = 0, false
if state ~= 'paused' then
  local returned, holds, buried = first_back(limit, most, letters)
  if buried >= CHUNK then
    more = true -- the caller asks again: what is first in line is not known yet
  elseif #returned == 0 then
    places = call('LPOP', fresh, limit) or {}
    more = #places == limit and call('LLEN', fresh) > 0
  else
    local waiting = call('LRANGE', fresh, 0, limit - 1)
    local from_fresh, at = 0, 1
    while #places < limit do
      local candidate, next_fresh = returned[at], waiting[from_fresh + 1]
      if not candidate and not next_fresh then
        break
      end
      if candidate and (not next_fresh or tonumber(candidate) < tonumber(next_fresh)) then
        if held(holds[at]) > 0 then
          if #places == 0 then
            places[1], taken_back[1], alone = candidate, candidate, at
          end
          break
        else
          places[#places + 1] = candidate
          taken_back[#taken_back + 1] = candidate
        end
        at = at + 1
      else
        places[#places + 1] = next_fresh
        from_fresh = from_fresh + 1
      end
    end
    if #taken_back > 0 then
      call('ZREM', back, unpack(taken_back))
    end
    if from_fresh > 0 then
      call('LPOP', fresh, from_fresh)
    end
    more = call('ZCARD', back) > 0 or call('LLEN', fresh) > 0
    if alone > 0 then
      alone = holds[alone]
    end
  end
end

local count, bodies, due = 1, {}, now + lasts
if #places > 0 then
  local error_text = ''
  if alone ~= 0 then
    count, error_text = held(alone)
    count = count + 1
  end
  local text = count .. ':' .. receipt .. ':' .. holder .. ':' .. error_text
  local holds, leases = {}, {}
  for index, place in ipairs(places) do
    holds[2 * index - 1], holds[2 * index] = place, text
  end
  for index = #places, 1, -1 do -- a short set is a list, which is gone through up to what comes next
    leases[#leases + 1], leases[#leases + 2] = due, places[index]
  end
  call('HSET', hold, unpack(holds))
  call('ZADD', lease, unpack(leases))
  bodies = call('HMGET', body, unpack(places))
  if holder ~= '' then
    call('ZADD', root .. ':members', now, holder)
  end
  if more then
    ring(bell)
  elseif lasts <= LONGEST_WAIT then
    ring_if_earliest(due)
  end
  return {now, birth, state, -1, silent, letters, places, bodies, count}
end
local next_one = next_due()
if more then
  next_one = now
elseif next_one < 0 then
  call('DEL', bell) -- otherwise one who waits must look, to know when to look again
end
return {now, birth, state, next_one, silent, letters, places, bodies, count}
