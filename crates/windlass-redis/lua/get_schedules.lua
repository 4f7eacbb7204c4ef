-- Returns schedules by name or id.

local replies = {}
for at, target in ipairs(request.schedules) do
  local of_name = target.name or schedule_name(target.id)
  replies[at] = { found = of_name and shown_schedule(of_name) or nil }
end
return cmsgpack.pack({ now = now, schedules = replies })
