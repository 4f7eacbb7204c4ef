-- New chains and jobs.

-- A job's fences begin at its time of creation, so that one that is created again under its id has others. They are
-- exact numbers here for the next two hundred years.
local FENCES_PER_MS = 1024

-- When a job is due, never before now.
local function due_at(schedule)
  if schedule.at then
    return math.max(schedule.at, now)
  end
  return after(now, schedule.after or 0)
end

-- The blockers with the stored chains that they mean; or nil and the one that is missing. `aliases` has the chains
-- that stand for chains of the same command which turned out to exist under their key.
local function resolve_blockers(list, aliases)
  local resolved = {}
  for at, blocker in ipairs(list) do
    local id = aliases[blocker.chain] or blocker.chain
    if not chain(id) then
      return nil, { why = 'blocker_not_found', chain = blocker.chain }
    end
    resolved[at] = { chain = id, trace = blocker.trace }
  end
  return resolved
end

-- The chains that a new job waits for, as a set, their number, and the first chain that makes it fail at once.
local function attach(list, policy)
  local open, count, failed = {}, 0, nil
  for _, blocker in ipairs(list) do
    local closed_as = chain(blocker.chain).closed_as
    local resolved = closed_as == 'completed' or (closed_as and policy == 'receive')
    if not resolved and not open[blocker.chain] then
      open[blocker.chain] = true
      count = count + 1
    end
    if closed_as and not resolved and policy == 'fail' then
      failed = failed or blocker.chain
    end
  end
  return open, count, failed
end

-- Stores a new job. `facts` are those of its place in a chain.
local function insert_job(new, list, facts)
  local open, count, failed = attach(list, new.on_failure)
  local row = blank(new.id)
  set(rows, new.id, row)
  facts.seq, facts.type, facts.created, facts.due = next_seq(), new.type, now, due_at(new)
  facts.priority, facts.max_attempts, facts.trace = new.priority, new.max_attempts, new.trace
  facts.fence = now * FENCES_PER_MS
  facts.status = failed and 'failed' or count > 0 and 'blocked' or 'pending'
  facts.closed, facts.on_failure = failed and now or nil, new.on_failure
  if list[1] then
    facts.blockers, facts.waits = cmsgpack.pack(list), count
  end
  for field, value in pairs(facts) do
    if value ~= DEFAULTS[field] then
      set(row, field, value)
    end
  end
  set(row, 'input', ARGV[new.input])
  if failed then
    set(row, 'error', BLOCKER_FAILED .. failed)
  end
  row.known, row.open = { input = true, output = true, error = true }, open
  for id in pairs(open) do
    stage('SADD', name('waits', row.id), id)
  end
  for _, blocker in ipairs(list) do
    stage('ZADD', name('dependents', blocker.chain), row.seq, row.id)
  end
  need(row, 1)
  place(row)
  return row
end

local function insert_chain(new, list)
  local field = new.key and key_field(new.job.type, new.key.key)
  local former = field and pointed_at(field)
  if former then
    free_key(former)
  end
  local facts = {
    chain = new.job.id, chain_type = new.job.type, latest = new.job.id, chain_trace = new.trace,
    keep_completed = new.keep_completed, keep_failed = new.keep_failed, keep_cancelled = new.keep_cancelled,
  }
  if new.key then
    facts.key, facts.hold, facts.window, facts.held = new.key.key, new.key.hold, new.key.window, '1'
    point(field, new.job.id)
  end
  local row = insert_job(new.job, list, facts)
  if row.status == 'failed' then
    close_chain(row, 'failed')
  end
  return { new = { job = placed(row), repeated = false } }
end

-- The chain that holds the new one's key and is not to be replaced.
local function existing(new)
  local found = new.key and holder(new.job.type, new.key.key)
  if not found or found.id == new.key.replaces then
    return nil
  end
  local last = latest(found)
  return {
    chain = found.id, status = last.status, type = last.type, output = text(last, 'output'),
    error = text(last, 'error'), trace = found.chain_trace,
  }
end

-- Starts a chain: `{ new }`, `{ existing }` or `{ refused }`.
local function create_chain(new, aliases)
  if new.invalid then
    return { refused = { why = 'invalid' } }
  end
  local stored = job(new.job.id)
  if stored then
    if stored.index > 0 or stored.type ~= new.job.type then
      return { refused = { why = 'id_taken' } }
    end
    return { new = { job = placed(latest(stored)), repeated = true } }
  end
  local found = existing(new)
  if found then
    aliases[new.job.id] = found.chain
    return { existing = found }
  end
  local list, missing = resolve_blockers(new.job.blockers, aliases)
  if not list then
    return { refused = missing }
  end
  return insert_chain(new, list)
end

