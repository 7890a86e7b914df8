-- What the scripts share; it stands before each of them.
--
-- KEYS[1] is the key of one queue, a mailbox or its dead letters: 'loopwarden:{name}' or 'loopwarden:{name}:dead'. All
-- others are made of it, and are in one hash slot with it:
--   :seq     the last place in line that was given; none is given twice
--   :fresh   LIST of places that were never received, in order
--   :back    ZSET of places that came back or whose delay is over, by place
--   :lease   ZSET of leased places, by when the lease ends
--   :delay   ZSET of places that are not due yet, by when they are
--   :body    HASH of place to 'sent_at meta\nbody'
--   :hold    HASH of place to 'count:receipt:holder:error', of those that were received
--   :bell    LIST of at most one token: something is there
--   :room    LIST of at most one token: a send that waits may look again. It says how many have looked in vain
--   :waiting SET of processes with sends that wait for room, or did
--   :meta    HASH: birth, which no other mailbox of this name has had; state
--   :members ZSET of processes, by their last sign of life; :member HASH of process to what it says of itself
--   :sent    HASH of sender to 'request:place:time', the last that it sent, and when by the server's own time
--   :senders ZSET of sender by when it had sent at the latest look, which may be too early
--   :dedup   HASH of dedup id to place; :until ZSET of dedup id by when it is forgotten
-- and of dead letters only:
--   :all     ZSET of places, in order;  :about HASH of place to JSON;  :ids HASH of message id to place
-- Times are milliseconds. ARGV[1] is the time; if it is empty, that of the server is.
local base = KEYS[1]
local fresh, back, lease, delay = base .. ':fresh', base .. ':back', base .. ':lease', base .. ':delay'
local body, hold, bell, meta = base .. ':body', base .. ':hold', base .. ':bell', base .. ':meta'
-- The mailbox, whose dead letters it may be.
local root = string.sub(base, -5) == ':dead' and string.sub(base, 1, -6) or base
local call = redis.call

local function server_time()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = tonumber(ARGV[1]) or server_time()

-- Most messages that one script brings back, or looks at, so that no other client waits for long.
local CHUNK = 1000
-- No receive waits longer.
local LONGEST_WAIT = 20000
-- A process that gave no sign of life for so long is dead, as in `_suspects.py`; before that it is watched.
local DEAD_AFTER = 15000
local SILENT_AFTER = 6000

local function ring(key)
  if call('LLEN', key) == 0 then
    call('RPUSH', key, '1')
  end
end

-- Most sends that look in vain for room, one after the other, before they wait for more of it.
local MOST_HOPS = 16

-- Wakes a send that waits for room, in whichever process.
local function pass_room(hops)
  local room = base .. ':room'
  call('DEL', room)
  call('RPUSH', room, hops)
end

local function made_room()
  if call('SCARD', base .. ':waiting') > 0 then
    pass_room(0)
  end
end

-- Writes what stands there already, so that replicas have something to confirm of a call that was done before; first
-- comes what a server without memory lets a script go on that has begun with.
local function write_again()
  local known = root .. ':meta'
  local birth = call('HGET', known, 'birth')
  if birth then
    call('HDEL', known, '')
    call('HSET', known, 'birth', birth)
  end
end

-- Returns what is known of a message: count, error.
local function held(text)
  if not text then
    return 0, ''
  end
  local count, err = string.match(text, '^(%d+):[^:]*:[^:]*:(.*)$')
  return tonumber(count) or 0, err or ''
end

-- Makes a message a dead letter; the caller has taken it out of the line. `untold` says that no delivery told what went
-- wrong. Returns the id.
local function bury(place, count, reason, err, untold)
  local dead = base .. ':dead'
  local id = (call('HGET', meta, 'birth') or '') .. '-' .. place
  local letter = call('INCR', dead .. ':seq')
  local about = {id = id, reason = reason, count = count, at = now}
  if err ~= '' then
    about.error = err
  elseif untold then
    about.untold = true
  end
  call('HSET', dead .. ':body', letter, call('HGET', body, place) or '')
  call('HSET', dead .. ':about', letter, cjson.encode(about))
  call('HSET', dead .. ':ids', id, letter)
  call('ZADD', dead .. ':all', letter, letter)
  call('ZADD', dead .. ':back', letter, letter)
  call('HDEL', body, place)
  call('HDEL', hold, place)
  ring(dead .. ':bell')
  made_room()
  return id
end

-- Makes a message a dead letter that was delivered as often as it may be, and notes that.
local function exhaust(buried, place, count, err)
  local reason = 'it was delivered ' .. (count == 1 and '1 time' or count .. ' times')
  buried[#buried + 1] = bury(place, count, reason, err, true)
  buried[#buried + 1] = count
  buried[#buried + 1] = err
end

-- Ends leases and delays that are due, a chunk of each. Returns the places that came back, and what is told of those
-- that became dead letters: id, count and error of each, one after the other.
local function bring_back(most)
  local returned, buried = {}, {}
  for _, key in ipairs({lease, delay}) do
    local due = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, CHUNK)
    if #due > 0 then
      call('ZREM', key, unpack(due))
      local holds = call('HMGET', hold, unpack(due))
      local scored, freed = {}, {}
      for index, place in ipairs(due) do
        local count, err = held(holds[index])
        if most and count >= most then
          exhaust(buried, place, count, err)
        else
          returned[#returned + 1] = place
          scored[#scored + 1] = place
          scored[#scored + 1] = place
          if holds[index] then
            freed[#freed + 1] = place
            freed[#freed + 1] = count .. ':::' .. err
          end
        end
      end
      if #scored > 0 then
        call('ZADD', back, unpack(scored))
      end
      if #freed > 0 then
        call('HSET', hold, unpack(freed))
      end
    end
  end
  return returned, buried
end

-- Returns when the next lease or delay ends; -1 if there is none.
local function next_due()
  local least = -1
  for _, key in ipairs({lease, delay}) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[2] and (least < 0 or tonumber(first[2]) < least) then
      least = tonumber(first[2])
    end
  end
  return least
end

-- Has a receive that waits look again when to wake up, if something is due sooner than it may know.
local function ring_if_earliest(due)
  if due - now <= LONGEST_WAIT and next_due() >= due then
    ring(bell)
  end
end

-- Reads which deliveries are meant, from one argument on: what their hold begins with, when their lease ends as far as
-- the caller knows, how many these are, and their places; then the next ones that have all that in common.
local function meant(at)
  local places, receipts, dues, count, last = {}, {}, {}, 0, #ARGV
  while at <= last do
    local receipt, due, most = ARGV[at], tonumber(ARGV[at + 1]), at + 2 + ARGV[at + 2]
    for index = at + 3, most do
      count = count + 1
      places[count], receipts[count], dues[count] = ARGV[index], receipt, due
    end
    at = most + 1
  end
  return places, receipts, dues
end

-- Says for each place whether its delivery is not over. A script that settles takes `again` if the answer to the very
-- same call was lost: a message that is settled, although its lease cannot have ended yet, was settled by that call.
local function delivered(places, receipts)
  local holds = call('HMGET', hold, unpack(places))
  -- What has a receipt is leased, and no lease has ended before the first one has.
  local first = tonumber(call('ZRANGE', lease, 0, 0, 'WITHSCORES')[2])
  local dues = not (first and first > now) and call('ZMSCORE', lease, unpack(places))
  local good = {}
  for index, receipt in ipairs(receipts) do
    local text = holds[index]
    good[index] = text and string.sub(text, 1, #receipt) == receipt
      and (not dues or (dues[index] and tonumber(dues[index]) > now))
  end
  return good
end
