-- Acquires due jobs and leases them to a worker.

-- Maximum size of all inputs and blockers' outputs in a reply, unless it has only one job.
local REPLY_MAX_BYTES = 16 * 1024 * 1024

-- The order in which jobs run.
local function runs_before(left, right)
  if left.priority ~= right.priority then
    return left.priority > right.priority
  elseif left.due ~= right.due then
    return left.due < right.due
  end
  return left.seq < right.seq
end

-- Returns the jobs that this same request acquired and still holds.
local function taken_before(id)
  local taken = {}
  for _, job_id in ipairs(leased_by(id)) do
    local row = job(job_id)
    if row and row.request == id then
      taken[#taken + 1] = row
    end
  end
  table.sort(taken, runs_before)
  return taken
end

-- The types that are not paused.
local function unpaused(types)
  local names, list = {}, {}
  for at, quota in ipairs(types) do
    names[at] = quota.type
  end
  local paused = names[1] and read('SMISMEMBER', tag .. ':paused', unpack(names)) or {}
  for at, quota in ipairs(types) do
    if paused[at] == 0 then
      list[#list + 1] = quota
    end
  end
  return list
end

-- The priorities of a type that have pending jobs, as stored and as staged.
local function priorities(job_type)
  local found = {}
  for _, priority in ipairs(stored_priorities(job_type)) do
    found[priority] = true
  end
  for priority, staged in pairs(pending_sets_by_type[job_type] or {}) do
    found[priority] = found[priority] or next(staged.staged) ~= nil
  end
  return found
end

-- Returns the pending sets of the requested types by priority, highest first, as `{ priority, pending_sets }`.
local function levels(types)
  local by_priority, list = {}, {}
  for _, quota in ipairs(types) do
    quota.left = quota.max
    for priority, has_jobs in pairs(priorities(quota.type)) do
      if has_jobs and not by_priority[priority] then
        by_priority[priority] = { priority = priority, pending_sets = {} }
        list[#list + 1] = by_priority[priority]
      end
      if has_jobs then
        local pending_sets = by_priority[priority].pending_sets
        pending_sets[#pending_sets + 1] = { quota = quota, jobs = pending_set(quota.type, priority) }
      end
    end
  end
  table.sort(list, function(left, right) return left.priority > right.priority end)
  return list
end

-- Returns the pending set of a level whose head comes first, among those that are due and within their quota, and
-- that head.
local function first_pending_set(pending_sets)
  local found, head
  for _, candidate in ipairs(pending_sets) do
    local entry = candidate.quota.left > 0 and first(candidate.jobs) or nil
    if entry and entry.score <= now and (not head or before(entry, head)) then
      found, head = candidate, entry
    end
  end
  return found, head
end

local function lease(row, asked, quota)
  remove_from_indexes(row)
  change(row)
  row.status, row.attempt, row.fence, row.version = 'running', row.attempt + 1, row.fence + 1, row.version + 1
  row.worker, row.worker_name, row.request = asked.worker, asked.worker_name, asked.request
  row.lease_until = after(now, quota.lease)
  row.started, row.ended_as = now, nil
  add_to_indexes(row)
end

-- Returns the outputs of a job's blockers.
local function outputs(row)
  local list = {}
  for _, blocker in ipairs(blockers(row)) do
    local blocking = chain(blocker.chain)
    if blocking then
      local last = latest(blocking)
      list[#list + 1] = {
        chain = blocking.id, chain_type = blocking.chain_type, type = last.type, status = last.status,
        output = output(last), error = last.error,
      }
    end
  end
  return list
end

-- Returns the size of a job in the reply: its input and the outputs of its blockers.
local function size_in_reply(row)
  read_whole(row)
  local size = #row.input
  if row.blockers then
    row.outputs = outputs(row)
    for _, blocker in ipairs(row.outputs) do
      size = size + #(blocker.output or '')
    end
  end
  return size
end

-- Leases due jobs, as many as a reply can hold, but at least one.
local function take(asked)
  local taken, bytes = {}, 0
  for _, level in ipairs(levels(unpaused(asked.types))) do
    while #taken < asked.max do
      local found, head = first_pending_set(level.pending_sets)
      if not found then
        break
      end
      local row = must(job(id_of(head)), 'job ' .. id_of(head))
      bytes = bytes + size_in_reply(row)
      if bytes > REPLY_MAX_BYTES and taken[1] then
        return taken
      end
      lease(row, asked, found.quota)
      found.quota.left = found.quota.left - 1
      taken[#taken + 1] = row
    end
  end
  return taken
end

local function acquire(asked)
  ripple()
  local taken, replies = taken_before(asked.request), {}
  if not taken[1] then
    taken = take(asked)
  end
  for at, row in ipairs(taken) do
    -- The first job's row has the fields of the chain.
    local first_row = row.index > 0 and pack_row(chain_of(row)) or nil
    replies[at] = {
      job = view(row), first = first_row, blockers = row.blockers and (row.outputs or outputs(row)) or nil,
    }
  end
  return { jobs = replies, ripple = take_report(), now = now }
end

