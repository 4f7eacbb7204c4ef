-- Removes chains and jobs whose retention has ended.

local left = request.max
-- How many more entries of `leaving` this call may drop because their chain leaves later or has left.
local stale_left = 1000

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

-- Returns the chain of an entry, or nil if the entry is stale: the chain has been reopened, needed, removed or given
-- another retention since.
local function leaver(entry)
  local of = chain(id_of(entry))
  if of and member(of) == entry.member and of.closed_as and of.needed == 0 and removable_at(of) == entry.score then
    return of
  end
end

-- Replaces an entry for several chains by one for each that still leaves, in the order of their numbers.
local function split(entry)
  remove(leaving(), entry.member)
  for at = 1, #entry.member, MEMBER_LENGTH do
    local single = { score = entry.score, member = string.sub(entry.member, at, at + MEMBER_LENGTH - 1) }
    if leaver(single) then
      add(leaving(), single.score, single.member)
    end
  end
end

-- The time whose entries have been split.
local split_time = nil

-- Returns the next chain that may be removed.
local function next_leaver()
  local entry = due(leaving())
  while entry and stale_left > 0 do
    if entry.score ~= split_time then
      split_time = entry.score
      for _, stored in ipairs(read('ZRANGEBYSCORE', leaving().key, split_time, split_time)) do
        if #stored > MEMBER_LENGTH then
          split({ score = split_time, member = stored })
        end
      end
    else
      local of = leaver(entry)
      if of then
        return of
      end
      remove(leaving(), entry.member)
      stale_left = stale_left - 1
    end
    entry = due(leaving())
  end
end

local replies = {}
local of = next_leaver()
while of do
  local jobs = of.latest_index > 0 and read('ZCARD', later_jobs(of.id).key) + 1 or 1
  if jobs > left then
    trim(of, left)
    break
  end
  replies[#replies + 1] = { chain = of.id, chain_type = of.chain_type, closed_as = of.closed_as }
  left = left - remove_chain(of)
  of = next_leaver()
end
local entry = due(trimming())
while entry and left > 0 do
  trim(must(chain(entry.member), 'chain ' .. entry.member), left)
  entry = due(trimming())
end
local more = next_leaver() ~= nil or stale_left == 0 or due(trimming()) ~= nil
commit()
return cmsgpack.pack({ chains = replies, jobs = request.max - left, more = more })
