-- The indexes that contain a row, by its status.

local HISTORY_MAX = 30

-- The pending sets that this script uses, by type and priority.
local pending_sets_by_type = {}

-- Pending jobs of a type and priority, by due time. A type name has no control characters, so NUL can end it.
local function pending_set(job_type, priority)
  local pending_sets = pending_sets_by_type[job_type] or {}
  pending_sets_by_type[job_type] = pending_sets
  pending_sets[priority] = pending_sets[priority]
    or index(name('pending', priority .. ':' .. job_type), tag .. ':pending_sets', job_type .. '\0' .. priority)
  return pending_sets[priority]
end

-- Returns the stored priorities of a type that have pending jobs.
local function stored_priorities(job_type)
  local found, prefix = {}, job_type .. '\0'
  for at, listed in ipairs(read('ZRANGEBYLEX', tag .. ':pending_sets', '[' .. prefix, '(' .. job_type .. '\1')) do
    found[at] = tonumber(string.sub(listed, #prefix + 1))
  end
  return found
end

-- Running jobs of a type, by lease expiry.
local function running(job_type)
  return index(name('running', job_type), tag .. ':busy', job_type)
end

-- Jobs of a type with a status that has no other index, by their order of creation.
local function with_status(row)
  return index(name(row.status, row.type))
end

-- Blocked jobs that wait for a chain: those that keep waiting if it fails, and those that react.
local function waiting(chain_id, policy)
  return index(name(policy and 'eager' or 'patient', chain_id))
end

-- All jobs that wait or waited for a chain, and the open ones among them, in order of creation.
local function dependents(chain_id)
  return index(name('dependents', chain_id))
end

local function open_dependents(chain_id)
  return index(name('needing', chain_id))
end

-- Chains with more than one job that have not completed, by type.
local function long_chains(chain_type)
  return index(name('long', chain_type))
end

-- The jobs of a chain except the first, by index.
local function later_jobs(chain_id)
  return index(name('jobs', chain_id))
end

-- Closed chains that no job needs, by the time from which they may be removed. A member may name several chains. It
-- stays if one of them needs to stay: `expire` checks each.
local function leaving()
  return index(tag .. ':leaving')
end

-- Open chains, by the time from which their oldest inner job may be removed.
local function trimming()
  return index(tag .. ':trimming')
end

-- Closed chains with unresolved dependents, by the time they closed.
local function rippling()
  return index(tag .. ':rippling')
end

local OPEN = { blocked = true, pending = true, running = true }

-- Changes to the stored number of jobs of each type and status.
local counts = {}

local function count(row, by)
  local of_type = counts[row.type]
  if not of_type then
    of_type = {}
    counts[row.type] = of_type
  end
  set(of_type, row.status, (of_type[row.status] or 0) + by)
end

-- Changes to the number of jobs that ended with a status and no longer have it, by status and type.
local former = {}

-- Notes that a job is about to be removed or retried. Its outcome stays in the totals of its type.
local function leave_outcome(row)
  local field = row.status .. ':' .. row.type
  set(former, field, (former[field] or 0) + 1)
end

-- The jobs that each acquire request leased: changes to their stored number, and the new ones.
local held_by, leased = {}, {}

local function hold(row, by)
  set(held_by, row.request, (held_by[row.request] or 0) + by)
  if by > 0 then
    leased[row.request] = leased[row.request] or {}
    table.insert(leased[row.request], row.id)
  end
end

-- Adds a row to the indexes of its status.
local function add_to_indexes(row)
  count(row, 1)
  if row.status == 'pending' then
    add(pending_set(row.type, row.priority), row.due, member(row))
  elseif row.status == 'running' then
    add(running(row.type), row.lease_until, member(row))
    hold(row, 1)
  elseif row.status ~= 'completed' then
    add(with_status(row), 0, member(row))
  end
  if row.status == 'blocked' then
    for id in pairs(open_waits(row)) do
      add(waiting(id, row.on_failure), row.seq, row.id)
    end
  end
end

-- Removes a row from the indexes of its status, before the status changes.
local function remove_from_indexes(row)
  count(row, -1)
  if row.status == 'pending' then
    remove(pending_set(row.type, row.priority), member(row))
  elseif row.status == 'running' then
    remove(running(row.type), member(row))
    hold(row, -1)
  elseif row.status ~= 'completed' then
    remove(with_status(row), member(row))
  end
  if row.status == 'blocked' then
    for id in pairs(open_waits(row)) do
      remove(waiting(id, row.on_failure), row.id)
    end
  end
end

-- Returns when a closed chain may be removed.
local function removable_at(of)
  return math.max(of.retain_until, after(of.chain_closed, REPEAT_WINDOW))
end

-- Counts the row's blockers as needed or no longer needed. A closed chain is removed only while no job needs it.
local function need(row, by)
  for _, blocker in ipairs(blockers(row)) do
    local blocking = chain(blocker.chain)
    -- A chain that was deleted and created again does not count failed jobs that needed it before.
    if blocking and blocking.needed + by >= 0 then
      local former = blocking.needed
      change(blocking)
      blocking.needed = former + by
      if blocking.closed_as and former == 0 then
        remove(leaving(), member(blocking))
      elseif blocking.closed_as and blocking.needed == 0 then
        add(leaving(), removable_at(blocking), member(blocking))
      end
    end
  end
end

-- Records that an open job depends on its blockers, or that it has closed.
local function depend(row, is_open)
  for _, blocker in ipairs(blockers(row)) do
    if is_open then
      add(open_dependents(blocker.chain), row.seq, row.id)
    else
      remove(open_dependents(blocker.chain), row.id)
    end
  end
end

-- Updates when the oldest inner job of a chain may be removed, or that there is none.
local function trim_at(of, inner)
  if of.trim_at then
    remove(trimming(), of.id)
  end
  local time = nil
  if inner and not of.closed_as then
    time = after(inner.closed, math.max(of.keep_completed, REPEAT_WINDOW))
    add(trimming(), time, of.id)
  end
  change(of)
  of.trim_at = time
end

-- Keys are fields of one hash: the type's length, the type and the key.
local key_holders = {}

local function key_field(job_type, key)
  return #job_type .. ':' .. job_type .. key
end

-- Returns the row of the latest chain stored with a key, or nil.
local function pointed_at(field)
  if key_holders[field] == nil then
    key_holders[field] = read('HGET', tag .. ':keys', field)
  end
  return key_holders[field] and chain(key_holders[field])
end

local function point(field, id)
  set(key_holders, field, id)
  if id then
    stage('HSET', tag .. ':keys', field, id)
  else
    stage('HDEL', tag .. ':keys', field)
  end
end

local HOLDS = {
  open = {},
  completed = { completed = true },
  completed_or_failed = { completed = true, failed = true },
  any = { completed = true, failed = true, cancelled = true },
}

-- Returns the row of the chain that a key points at now, or nil.
local function found_by(job_type, key)
  local found = pointed_at(key_field(job_type, key))
  return found and (not found.closed_as or now < found.retain_until) and found or nil
end

-- Returns the row of the chain that holds a key now, or nil.
local function holder(job_type, key)
  local found = found_by(job_type, key)
  if not found or (found.window and now >= after(found.created, found.window)) then
    return nil
  end
  return (not found.closed_as or HOLDS[found.hold][found.closed_as]) and found or nil
end

-- Releases a chain's key.
local function free_key(of)
  if of.held then
    change(of)
    of.held = nil
    point(key_field(of.chain_type, of.key), false)
  end
end

-- Adds a record to a row's history. Drops the oldest if there are too many.
local function push_history(row, record)
  local key = name('history', row.id)
  stage('RPUSH', key, cmsgpack.pack(record))
  stage('LTRIM', key, -HISTORY_MAX, -1)
  set(row, 'remembered', record)
end

-- Returns the record of a row's latest attempt, with this end, or running.
local function attempt_of(row, ended_as, ended, error_text)
  return {
    attempt = row.attempt, fence = row.fence, worker = row.worker, worker_name = row.worker_name, started = row.started, ended = ended,
    ended_as = ended_as, error = error_text,
  }
end

-- Returns the record of the latest attempt, or nil if it is already in the history.
local function latest_attempt(row)
  if row.status == 'running' then
    return attempt_of(row, 'running')
  elseif row.worker and row.ended_as then
    return attempt_of(row, row.ended_as, row.closed, row.status ~= 'completed' and row.error or nil)
  end
  return nil
end

-- Returns how the attempt with this fence ended, if that is recorded.
local function end_of(row, fence)
  if row.fence == fence and row.ended_as then
    return row.ended_as
  end
  if row.remembered and row.remembered.fence == fence then
    return row.remembered.ended_as
  end
  for _, packed in ipairs(read('LRANGE', name('history', row.id), 0, -1)) do
    local record = cmsgpack.unpack(packed)
    if record.fence == fence then
      return record.ended_as
    end
  end
  return nil
end

-- Returns the row of a job that runs under this fence, or nil and why the attempt no longer holds it.
local function held(id, fence)
  local row = job(id)
  if not row then
    return nil, 'not_found'
  elseif row.status == 'running' then
    if row.fence == fence then
      return row
    end
    return nil, 'taken_over'
  elseif row.status == 'pending' or row.status == 'blocked' then
    return nil, 'requeued'
  end
  return nil, row.status
end

local function stage_counts()
  local changes = {}
  for job_type, statuses in pairs(counts) do
    for status, by in pairs(statuses) do
      changes[status .. ':' .. job_type] = by
    end
  end
  stage_numbers(tag .. ':counts', changes)
end

-- Returns the jobs that an acquire request leased. Some may be settled by now.
local function leased_by(request_id)
  local key, ids = name('request', request_id), {}
  local stored = read('GET', key) or ''
  if #stored % ID_LENGTH ~= 0 then
    error({ err = 'WRONGTYPE key ' .. key .. ' is not a list of jobs' })
  end
  for at = 1, #stored, ID_LENGTH do
    ids[#ids + 1] = string.sub(stored, at, at + ID_LENGTH - 1)
  end
  return ids
end

local function stage_requests()
  local left = stage_numbers(tag .. ':held', held_by)
  for request_id, number in pairs(left) do
    if number == 0 then
      leased_by(request_id)
      stage('UNLINK', name('request', request_id))
    end
  end
  for request_id, ids in pairs(leased) do
    if left[request_id] ~= 0 then
      stage('SET', name('request', request_id), table.concat(ids))
    end
  end
end

-- Writes all staged changes.
local function commit()
  if numbers.seq ~= numbers.stored_seq then
    stage('HSET', tag .. ':meta', 'layout', LAYOUT, 'seq', numbers.seq)
  end
  if numbers.deleted_fence ~= numbers.stored_deleted then
    stage('HSET', tag .. ':meta', 'layout', LAYOUT, 'deleted_fence', numbers.deleted_fence)
  end
  stage_counts()
  stage_numbers(tag .. ':former', former)
  stage_requests()
  stage_order()
  write_all(row_commands())
end

