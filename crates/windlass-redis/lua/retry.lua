-- Reopens chains that failed or were cancelled.

-- Returns why the job cannot be reopened, or nil.
local function retry_refusal(row, of)
  local other = of.key and holder(of.chain_type, of.key)
  if other and other.id ~= of.id then
    return { why = 'key_taken', chain = other.id }
  end
  for _, blocker in ipairs(blockers(row)) do
    local blocking = chain(blocker.chain)
    if not blocking then
      return { why = 'blocker_not_found', chain = blocker.chain }
    end
    local failed = blocking.closed_as and blocking.closed_as ~= 'completed'
    if failed and row.on_failure == 'fail' then
      return { why = 'blocker_failed', chain = blocker.chain }
    end
  end
  return nil
end

-- Resolves waits for blockers that have closed since.
local function resolve_waits(row)
  local over = {}
  for id in pairs(open_waits(row)) do
    local closed_as = chain(id).closed_as
    if closed_as == 'completed' or (closed_as and row.on_failure == 'receive') then
      over[#over + 1] = id
    end
  end
  for _, id in ipairs(over) do
    stop_waiting(row, id)
  end
end

local function reopen_chain(of)
  remove(leaving(), member(of))
  remove(rippling(), member(of))
  change(of)
  of.closed_as, of.chain_closed, of.retain_until = nil, nil, nil
  if of.key then
    local field = key_field(of.chain_type, of.key)
    local former = pointed_at(field)
    if former then
      free_key(former)
    end
    of.held = true
    point(field, of.id)
  end
  local inner = of.latest_index > 1 and read('ZRANGE', later_jobs(of.id).key, 0, 0)[1]
  if inner and inner ~= of.latest then
    trim_at(of, must(job(inner), 'job ' .. inner))
  end
end

local function reopen(row, of)
  local record = latest_attempt(row)
  if record then
    push_history(row, record)
  end
  if row.status == 'cancelled' then
    need(row, 1)
  end
  leave_outcome(row)
  remove_from_indexes(row)
  resolve_waits(row)
  change(row)
  row.status = row.waits > 0 and 'blocked' or 'pending'
  row.due, row.attempt, row.version = now, 0, row.version + 1
  row.closed, row.closed_by, row.cancel, row.ended_as = nil, nil, nil, nil
  reopen_chain(of)
  add_to_indexes(row)
  depend(row, true)
end

local function retry_one(target)
  local row = job(target.job)
  if not row then
    return 'not_found'
  elseif row.version > target.version then
    return 'already_retried'
  elseif row.version ~= target.version or (row.status ~= 'failed' and row.status ~= 'cancelled') then
    return { not_retriable = row.status }
  end
  local of = chain_of(row)
  local refused = retry_refusal(row, of)
  if refused then
    return { refused = refused }
  end
  reopen(row, of)
  return { retried = { job = summary(row), type = row.type, chain_type = row.chain_type } }
end

local replies = {}
for at, target in ipairs(request.chains) do
  replies[at] = retry_one(target)
end
commit()
return cmsgpack.pack({ chains = replies })
