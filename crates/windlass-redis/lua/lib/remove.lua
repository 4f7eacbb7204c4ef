-- Removes chains and jobs.

local function remove_job(row)
  remove_from_indexes(row)
  note_deleted_fence(row.fence)
  if OPEN[row.status] then
    depend(row, false)
  else
    leave_outcome(row)
  end
  if OPEN[row.status] or row.status == 'failed' then
    need(row, -1)
  end
  for _, blocker in ipairs(blockers(row)) do
    remove(dependents(blocker.chain), row.id)
  end
  leave_order(row)
  local command = { 'UNLINK', name('job', row.id), name('history', row.id) }
  if row.inline_input == '' then
    command[#command + 1] = name('input', row.id)
  end
  if row.status == 'completed' and row.inline_output == '' then
    command[#command + 1] = name('output', row.id)
  end
  if row.blockers then
    command[#command + 1] = name('waits', row.id)
  end
  journal[#journal + 1] = command
  rows[row.id] = false
end

-- Returns the jobs of a chain except the first, in order, as stored.
local function later_ids(of)
  return of.latest_index > 0 and read('ZRANGE', later_jobs(of.id).key, 0, -1) or {}
end

-- Removes a chain with all its jobs. Returns the number of jobs.
local function remove_chain(of)
  local ids = later_ids(of)
  for _, id in ipairs(ids) do
    remove_job(must(job(id), 'job ' .. id))
  end
  free_key(of)
  if of.trim_at then
    remove(trimming(), of.id)
  end
  if of.closed_as then
    remove(leaving(), member(of))
    remove(rippling(), member(of))
  end
  remove(long_chains(of.chain_type), member(of))
  stage('UNLINK', later_jobs(of.id).key)
  remove_job(of)
  return #ids + 1
end

