-- Returns jobs by id.

local replies = {}
for at, id in ipairs(request.jobs) do
  local row = job(id)
  replies[at] = { found = row and view(row) }
end
return cmsgpack.pack({ jobs = replies })
