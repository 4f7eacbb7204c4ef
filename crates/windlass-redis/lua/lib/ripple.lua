-- What follows from the end of chains: waits are resolved, jobs unblocked or failed.

-- How many more dependents this command may resolve.
local ripple_left = 1000

-- The job's last wait is resolved.
local function unblock(row)
  displace(row)
  change(row)
  row.status, row.due, row.version = 'pending', math.max(row.due, now), row.version + 1
  place(row)
  local traces = {}
  for _, blocker in ipairs(blockers(row)) do
    traces[#traces + 1] = { found = blocker.trace }
  end
  report.unblocked[#report.unblocked + 1] =
    { job = placed(row), type = row.type, chain_type = row.chain_type, traces = traces }
end

-- Resolves the job's wait for a chain that has closed.
local function resolve(row, blocking)
  if blocking.closed_as ~= 'completed' and row.on_failure == 'fail' then
    change(row)
    row.error = BLOCKER_FAILED .. blocking.id
    finish(row, 'failed', nil, nil)
    return
  end
  remove(waiting(blocking.id, row.on_failure), row.id)
  stop_waiting(row, blocking.id)
  if row.waits == 0 then
    unblock(row)
  end
end

-- The first created of the jobs that wait for the chain and that its end concerns.
local function next_waiting(blocking)
  local eager = first(waiting(blocking.id, 'eager'))
  local patient = blocking.closed_as == 'completed' and first(waiting(blocking.id)) or nil
  local entry = eager
  if not eager or (patient and before(patient, eager)) then
    entry = patient
  end
  return entry and must(job(entry.member), 'job ' .. entry.member)
end

-- Resolves waits for chains that have closed, of as many jobs as one command may. The marks of the chains let a later
-- command go on with the rest.
local function ripple()
  local marks = rippling()
  local entry = first(marks)
  while entry do
    local blocking = must(chain(id_of(entry)), 'chain ' .. id_of(entry))
    local row = next_waiting(blocking)
    while row do
      if ripple_left == 0 then
        return
      end
      ripple_left = ripple_left - 1
      resolve(row, blocking)
      row = next_waiting(blocking)
    end
    remove(marks, entry.member)
    entry = first(marks)
  end
end

