-- Settles attempts.

local CYCLE_SEARCH_MAX = 1000

-- The ends that an attempt settled with each outcome may have. A retry after the last attempt fails the job. After a
-- cancel request, an outcome that would continue the chain cancels it.
local ENDS = {
  complete = { completed = true },
  continue = { continued = true, cancelled = true },
  retry = { retried = true, exhausted = true, cancelled = true },
  reschedule = { rescheduled = true, cancelled = true },
  fail = { failed = true },
  release = { released = true, cancelled = true },
}

local function applied(row)
  return { job = summary(row), created = {} }
end

-- Closes the job, with the worker that ran it, and its chain.
local function close(row, closed_as, ended_as, retention)
  finish(row, closed_as, ended_as, row.worker, retention)
  return applied(row)
end

local function fail(row, error_text, ended_as, retention)
  change(row)
  row.error = error_text
  return close(row, 'failed', ended_as, retention)
end

-- Creates the chains that a settlement carries. Returns nil and the refusal if one is refused. A chain that was asked
-- to stop (`stopping`) gets no successor, because nothing would stop the successor.
local function create_carried(list, aliases, stopping)
  local created = {}
  for at, new in ipairs(list) do
    if stopping and new.key and new.key.replaces == stopping then
      created[at] = { refused = { why = 'cancel_requested' } }
    else
      created[at] = create_chain(new, aliases)
      if created[at].refused then
        return nil, created[at].refused
      end
    end
  end
  return created
end

-- Returns the chains that a chain's latest job waits for, or would wait for if it were retried.
local function waited_for(of)
  local list, last = {}, latest(of)
  local retriable = last.status == 'failed' or last.status == 'cancelled'
  local open = last.status == 'blocked' and open_waits(last) or {}
  for _, blocker in ipairs(blockers(last)) do
    if retriable or open[blocker.chain] then
      list[#list + 1] = blocker.chain
    end
  end
  return list
end

-- Whether a chain waits for `sought`, directly or through others, as far as a bounded search shows. `seen` has the
-- chains that earlier searches for it visited without success.
local function reaches(from, sought, seen)
  local queue = { from }
  while queue[1] do
    local id = table.remove(queue)
    if id == sought then
      return true
    end
    if seen.count < CYCLE_SEARCH_MAX and not seen[id] then
      seen[id], seen.count = true, seen.count + 1
      local found = chain(id)
      for _, waited in ipairs(found and waited_for(found) or {}) do
        queue[#queue + 1] = waited
      end
    end
  end
  return false
end

-- Completes the job without an output and adds the next one to its chain. Returns nil and the reason if that is
-- refused.
local function continue_chain(row, item, ended_as, closed_by)
  local aliases = {}
  local created, refused = create_carried(item.create, aliases)
  if not created then
    return nil, refused
  end
  if job(item.next.id) then
    return nil, { why = 'id_taken' }
  end
  local list, missing = resolve_blockers(item.next.blockers, aliases)
  if not list then
    return nil, missing
  end
  local seen = { count = 0 }
  for _, blocker in ipairs(list) do
    if reaches(blocker.chain, row.chain, seen) then
      return nil, { why = 'waits_for_itself', chain = blocker.chain }
    end
  end
  local of = chain_of(row)
  change(row)
  row.error = nil
  close_job(row, 'completed', ended_as, closed_by)
  local next_job = append_job(of, item.next, list)
  if row.index > 0 and not of.trim_at then
    trim_at(of, row)
  end
  if next_job.status == 'failed' then
    close_chain(of, 'failed')
    report_closed(of)
  end
  return { job = summary(row), next = summary(next_job), created = created }
end

local OUTCOMES = {
  complete = function(row, item)
    local created, refused = create_carried(item.create, {}, row.cancel and row.chain)
    if not created then
      return nil, refused
    end
    change(row)
    set_output(row, ARGV[item.output])
    row.error = nil
    local reply = close(row, 'completed', 'completed', item.retention)
    reply.created = created
    return reply
  end,
  continue = function(row, item)
    return continue_chain(row, item, 'continued', row.worker)
  end,
  retry = function(row, item)
    if row.max_attempts and row.attempt >= row.max_attempts then
      return fail(row, item.error, 'exhausted')
    end
    requeue(row, due_at(item), item.error, 'retried')
    return applied(row)
  end,
  reschedule = function(row, item)
    requeue(row, due_at(item), item.error, 'rescheduled')
    return applied(row)
  end,
  fail = function(row, item)
    return fail(row, item.error, 'failed', item.retention)
  end,
  release = function(row)
    requeue(row, row.due, nil, 'released')
    return applied(row)
  end,
}

local function apply_outcome(row, item)
  if row.cancel and item.outcome ~= 'complete' and item.outcome ~= 'fail' then
    change(row)
    row.error = item.error or row.error
    return close(row, 'cancelled', 'cancelled')
  end
  return OUTCOMES[item.outcome](row, item)
end

local function settle_one(item)
  local row, lost = held(item.job, item.fence)
  if not row then
    local stored = job(item.job)
    local ended_as = stored and end_of(stored, item.fence)
    return ended_as and ENDS[item.outcome][ended_as] and { already_applied = summary(stored) } or { lost = lost }
  end
  if item.invalid then
    return { refused = { why = 'invalid' } }
  end
  -- Only an outcome that creates something can be refused midway and must be undone.
  if not item.next and not item.create[1] then
    return { applied = apply_outcome(row, item) }
  end
  mark()
  local reply, refused = apply_outcome(row, item)
  if not reply then
    undo()
    return { refused = refused }
  end
  keep()
  return { applied = reply }
end

local function settle_all(settlements)
  local replies = {}
  for at, item in ipairs(settlements) do
    replies[at] = settle_one(item)
  end
  ripple()
  return { settled = replies, ripple = take_report() }
end

