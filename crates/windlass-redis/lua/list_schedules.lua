-- Lists schedules by name.

local from = request.after and '(' .. request.after or '-'
local replies = {}
for at, of_name in ipairs(read('ZRANGEBYLEX', schedule_names.key, from, '+', 'LIMIT', 0, request.max)) do
  replies[at] = shown_schedule(of_name)
end
return cmsgpack.pack({ now = now, schedules = replies })
