-- Deletes all messages. Returns how many there were.
local count = call('HLEN', body)
call('UNLINK', fresh, back, lease, delay, body, hold, bell, base .. ':all', base .. ':about', base .. ':ids')
made_room()
return count
