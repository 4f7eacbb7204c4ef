-- Consequences of closed chains: resolves waits, and unblocks or fails the jobs that waited.

-- How many more dependents this command may resolve.
local ripple_left = 1000

-- Unblocks a job whose last wait is resolved.
local function unblock(row)
  remove_from_indexes(row)
  change(row)
  row.status, row.due, row.version = 'pending', math.max(row.due, now), row.version + 1
  add_to_indexes(row)
  local traces = {}
  for _, blocker in ipairs(blockers(row)) do
    traces[#traces + 1] = { found = blocker.trace }
  end
  report.unblocked[#report.unblocked + 1] =
    { job = summary(row), type = row.type, chain_type = row.chain_type, traces = traces }
end

-- Resolves the job's wait for a closed chain.
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

-- Returns the oldest job that waits for the chain and is affected by its end.
local function next_waiting(blocking)
  local eager = first(waiting(blocking.id, 'eager'))
  local patient = blocking.closed_as == 'completed' and first(waiting(blocking.id)) or nil
  local entry = eager
  if not eager or (patient and before(patient, eager)) then
    entry = patient
  end
  return entry and must(job(entry.member), 'job ' .. entry.member)
end

-- Resolves waits for closed chains, up to the limit of one command. The chains stay marked, so that a later command
-- continues.
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

