-- Removes chains and jobs whose retention has ended.

local left = request.max

-- Returns the first entry of an index whose time has passed.
local function due(of)
  local entry = first(of)
  return entry and entry.score <= now and entry or nil
end

-- Removes inner jobs of a chain that may be removed, oldest first.
local function trim(of, max)
  local jobs, stays = later_jobs(of.id), math.max(of.keep_completed, REPEAT_WINDOW)
  local oldest = nil
  for at, id in ipairs(max > 0 and read('ZRANGE', jobs.key, 0, max) or {}) do
    oldest = must(job(id), 'job ' .. id)
    local may_leave = of.closed_as or after(oldest.closed or TIME_MAX, stays) <= now
    if at > max or id == of.latest or not may_leave then
      break
    end
    remove_job(oldest)
    remove(jobs, id)
    left = left - 1
  end
  -- The last one examined is kept. If it is the latest, there is no inner job left.
  if not of.closed_as then
    trim_at(of, oldest and oldest.id ~= of.latest and oldest or nil)
  end
end

local replies = {}
local entry = due(leaving())
while entry do
  local of = must(chain(id_of(entry)), 'chain ' .. id_of(entry))
  local jobs = of.latest_index > 0 and read('ZCARD', later_jobs(of.id).key) + 1 or 1
  if jobs > left then
    trim(of, left)
    break
  end
  replies[#replies + 1] = { chain = of.id, chain_type = of.chain_type, closed_as = of.closed_as }
  left = left - remove_chain(of)
  entry = due(leaving())
end
entry = due(trimming())
while entry and left > 0 do
  trim(must(chain(entry.member), 'chain ' .. entry.member), left)
  entry = due(trimming())
end
local more = due(leaving()) ~= nil or due(trimming()) ~= nil
commit()
return cmsgpack.pack({ chains = replies, jobs = request.max - left, more = more })
