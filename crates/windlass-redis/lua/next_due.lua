-- Returns the next due time and lease expiry.

local least = {}

local function note(what, of)
  local entry = first(of)
  if entry then
    least[what] = math.min(least[what] or TIME_MAX, entry.score)
  end
end

local paused = {}
for _, job_type in ipairs(read('SMEMBERS', tag .. ':paused')) do
  paused[job_type] = true
end

if request.types then
  for _, job_type in ipairs(request.types) do
    note('lease_until', running(job_type))
    for _, priority in ipairs(paused[job_type] and {} or stored_priorities(job_type)) do
      note('due', pending_set(job_type, priority))
    end
  end
else
  for _, job_type in ipairs(read('ZRANGE', tag .. ':busy', 0, -1)) do
    note('lease_until', running(job_type))
  end
  for _, listed in ipairs(read('ZRANGE', tag .. ':pending_sets', 0, -1)) do
    local ends = string.find(listed, '\0', 1, true)
    local job_type, priority = string.sub(listed, 1, ends - 1), tonumber(string.sub(listed, ends + 1))
    if not paused[job_type] then
      note('due', pending_set(job_type, priority))
    end
  end
end
return cmsgpack.pack({ now = now, due = least.due, lease_until = least.lease_until })
