-- Returns the schedules that are due, and when the next one after them is due.

local found = read('ZRANGE', schedule_due.key, request.skip, request.skip + request.max, 'WITHSCORES')
local replies, next_due = {}, nil
for at = 1, #found, 2 do
  local due = tonumber(found[at + 1])
  if due > now or #replies == request.max then
    next_due = due
    break
  end
  replies[#replies + 1] = shown_schedule(found[at])
end
return cmsgpack.pack({ now = now, schedules = replies, next_due = next_due })
