-- New chains and jobs.

-- A job's fences start at its creation time, so that a job that is created again under the same id gets other fences.
-- They are exact in Lua numbers for the next two hundred years.
local FENCES_PER_MS = 1024

-- Returns when a job is due, never before now.
local function due_at(schedule)
  if schedule.at then
    return math.max(schedule.at, now)
  end
  return after(now, schedule.after or 0)
end

-- Resolves blockers to stored chains. Returns nil and the missing blocker if one is not stored. `aliases` maps chains
-- of the same command to the existing chains that hold their keys.
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

-- Returns the chains that a new job waits for as a set, their number, and the first chain that makes the job fail
-- immediately.
local function attach(list, policy)
  local open, count_open, failed = {}, 0, nil
  for _, blocker in ipairs(list) do
    local closed_as = chain(blocker.chain).closed_as
    local resolved = closed_as == 'completed' or (closed_as and policy == 'receive')
    if not resolved and not open[blocker.chain] then
      open[blocker.chain] = true
      count_open = count_open + 1
    end
    if closed_as and not resolved and policy == 'fail' then
      failed = failed or blocker.chain
    end
  end
  return open, count_open, failed
end

-- Records a new job's relations to its blockers.
local function insert_edges(row, list)
  for id in pairs(row.open) do
    add(waits(row), 0, id)
  end
  for _, blocker in ipairs(list) do
    add(dependents(blocker.chain), row.seq, row.id)
  end
  need(row, 1)
  if OPEN[row.status] then
    depend(row, true)
  end
end

-- Stores a new job. `row` is new and has the job's position in its chain.
local function insert_job(row, new, list)
  local open, count_open, failed = attach(list, new.on_failure)
  row.seq, row.type, row.priority, row.max_attempts = next_seq(), new.type, new.priority, new.max_attempts
  row.on_failure, row.created, row.trace = new.on_failure, now, new.trace
  row.blockers = list[1] and cmsgpack.pack(list) or nil
  row.fixed, row.input, row.new, row.whole = pack_fixed(row), ARGV[new.input], true, true
  row.status = failed and 'failed' or count_open > 0 and 'blocked' or 'pending'
  row.due, row.attempt, row.fence, row.version = due_at(new), 0, now * FENCES_PER_MS, 0
  row.waits, row.open = count_open, open
  if failed then
    row.closed, row.error = now, BLOCKER_FAILED .. failed
  end
  set(rows, new.id, row)
  touch(row)
  place(row)
  add(in_order(row), row.seq, row.id)
  add(in_order(row, true), row.seq, row.id)
  insert_edges(row, list)
end

local function insert_chain(new, list)
  local id = new.job.id
  local row = new_row(id)
  row.index, row.chain_type, row.chain_trace = 0, new.job.type, new.trace
  row.keep_completed, row.keep_failed, row.keep_cancelled = new.keep_completed, new.keep_failed, new.keep_cancelled
  row.latest, row.latest_index, row.needed, row.chain_changed = id, 0, 0, true
  if new.key then
    local field = key_field(new.job.type, new.key.key)
    local former = pointed_at(field)
    if former then
      free_key(former)
    end
    row.key, row.hold, row.window, row.held = new.key.key, new.key.hold, new.key.window, true
    point(field, id)
  end
  insert_job(row, new.job, list)
  if row.status == 'failed' then
    close_chain(row, 'failed')
  end
  return { new = { job = placed(row), repeated = false } }
end

-- Returns the chain that holds the new chain's key, unless it is to be replaced.
local function existing(new)
  local found = new.key and holder(new.job.type, new.key.key)
  if not found or found.id == new.key.replaces then
    return nil
  end
  local last = latest(found)
  return {
    chain = found.id, status = last.status, type = last.type, output = output(last), error = last.error,
    trace = found.chain_trace,
  }
end

-- Starts a chain. Returns `{ new }`, `{ existing }` or `{ refused }`.
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

-- Adds a job to a chain after its latest.
local function append_job(of, new, list)
  local row = new_row(new.id)
  row.index, row.chain, row.chain_type = of.latest_index + 1, of.id, of.chain_type
  insert_job(row, new, list)
  add(later_jobs(of.id), row.index, row.id)
  change_chain(of)
  of.latest, of.latest_index = row.id, row.index
  return row
end

