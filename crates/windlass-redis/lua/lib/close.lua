-- Ends attempts, jobs and chains.

local BLOCKER_FAILED = 'a blocker chain did not complete: '

-- Side effects of a command: jobs that it unblocked and chains that it closed.
local report = { unblocked = {}, closed = {} }

-- Returns the report so far and starts a new one.
local function take_report()
  local taken = report
  report = { unblocked = {}, closed = {} }
  return taken
end

-- Closes a job, with the worker of its latest attempt or with none.
local function close_job(row, closed_as, ended_as, closed_by)
  remove_from_indexes(row)
  change(row)
  row.status, row.closed, row.closed_by, row.ended_as = closed_as, now, closed_by, ended_as
  row.version, row.request, row.lease_until = row.version + 1, nil, nil
  add_to_indexes(row)
  depend(row, false)
  -- A failed job may be retried, and then needs its blockers.
  if closed_as ~= 'failed' then
    need(row, -1)
  end
  if closed_as == 'completed' and row.index > 0 then
    finish_in_order(row)
  end
end

-- Requeues a running job. Only retries and reaped leases count as attempts.
local function requeue(row, due, error_text, ended_as)
  push_history(row, attempt_of(row, ended_as, now, error_text))
  remove_from_indexes(row)
  change(row)
  if ended_as == 'rescheduled' or ended_as == 'released' then
    row.attempt = math.max(row.attempt - 1, 0)
  end
  row.status, row.due, row.error = 'pending', due, error_text or row.error
  row.version, row.request, row.lease_until = row.version + 1, nil, nil
  add_to_indexes(row)
end

-- Whether a waiting job is affected by this end of the chain.
local function has_dependents(of)
  return first(waiting(of.id, 'eager')) or (of.closed_as == 'completed' and first(waiting(of.id)))
end

-- Closes a chain whose latest job has just been closed. `ripple` resolves the jobs that wait for it.
local function close_chain(of, closed_as, retention)
  change(of)
  of.closed_as, of.chain_closed = closed_as, now
  of.retain_until = after(now, retention or of['keep_' .. closed_as])
  if of.trim_at then
    trim_at(of, nil)
  end
  if closed_as == 'completed' then
    finish_in_order(of)
    if is_long(of) then
      remove(long_chains(of.chain_type), member(of))
    end
  end
  if of.needed == 0 then
    add(leaving(), removable_at(of), member(of))
  elseif has_dependents(of) then
    add(rippling(), now, member(of))
  end
end

local function report_closed(of)
  local last = latest(of)
  report.closed[#report.closed + 1] = {
    chain = of.id, chain_type = of.chain_type, job = last.id, type = last.type, closed_as = of.closed_as,
    error = last.error, created = of.created, trace = of.chain_trace,
  }
end

-- Closes a job and its chain.
local function finish(row, closed_as, ended_as, closed_by, retention)
  local of = chain_of(row)
  close_job(row, closed_as, ended_as, closed_by)
  close_chain(of, closed_as, retention)
  report_closed(of)
end

