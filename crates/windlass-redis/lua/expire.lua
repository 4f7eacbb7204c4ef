-- Removes what is kept no longer.

local left = request.max

-- The first entry of an index whose time has come.
local function due(of)
  local entry = first(of)
  return entry and entry.score <= now and entry or nil
end

local function remove_job(row)
  displace(row)
  if row.status ~= 'completed' and row.status ~= 'cancelled' then
    need(row, -1)
  end
  for _, blocker in ipairs(blockers(row)) do
    stage('ZREM', name('dependents', blocker.chain), row.id)
  end
  stage('UNLINK', row.hash, name('waits', row.id), name('history', row.id))
  row.gone = true
  rows[row.id] = false
  left = left - 1
end

-- Removes a chain with all its jobs.
local function remove_chain(of)
  for _, id in ipairs(read('ZRANGE', name('jobs', of.id), 0, -1)) do
    remove_job(must(job(id), 'job ' .. id))
  end
  free_key(of)
  remove(leaving(), member(of))
  stage('UNLINK', name('jobs', of.id), name('dependents', of.id))
  remove_job(of)
end

-- Removes inner jobs of a chain that may leave, oldest first.
local function trim(of, max)
  local key, stays = name('jobs', of.id), math.max(of.keep_completed, REPEAT_WINDOW)
  local oldest = nil
  for at, id in ipairs(max > 0 and read('ZRANGE', key, 0, max) or {}) do
    oldest = must(job(id), 'job ' .. id)
    local may_leave = of.closed_as or after(oldest.closed or TIME_MAX, stays) <= now
    if at > max or id == of.latest or not may_leave then
      break
    end
    remove_job(oldest)
    stage('ZREM', key, id)
  end
  -- The last one looked at stays. If it is the latest there is no inner job any more.
  if not of.closed_as then
    trim_at(of, oldest and oldest.id ~= of.latest and oldest or nil)
  end
end

local replies = {}
local entry = due(leaving())
while entry do
  local of = must(chain(id_of(entry)), 'chain ' .. id_of(entry))
  if read('ZCARD', name('jobs', of.id)) + 1 > left then
    trim(of, left)
    break
  end
  replies[#replies + 1] = { chain = of.id, chain_type = of.chain_type, closed_as = of.closed_as }
  remove_chain(of)
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
