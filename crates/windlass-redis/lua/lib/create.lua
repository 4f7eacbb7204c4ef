-- New chains and jobs.

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
  unpack_constants(row, ARGV[new.constants] or new.constants)
  local open, count_open, failed = attach(list, row.on_failure)
  row.seq, row.type, row.priority, row.created = next_seq(), new.type, new.priority, now
  row.seq_text = string.format('%016.0f', row.seq)
  row.blockers = list[1] and cmsgpack.pack(list) or nil
  row.new, row.whole, row.inline_output = true, true, ''
  set_input(row, ARGV[new.input])
  row.large = #row.input > LARGE_MIN or nil
  row.status = failed and 'failed' or count_open > 0 and 'blocked' or 'pending'
  row.due, row.attempt, row.fence, row.version = due_at(new), 0, new_job_fence(), 0
  row.waits, row.open = count_open, open
  if failed then
    row.closed, row.error = now, BLOCKER_FAILED .. failed
  end
  set(rows, new.id, row)
  touch(row)
  add_to_indexes(row)
  enter_order(row)
  insert_edges(row, list)
end

local function insert_chain(new, list)
  local id = new.job.id
  local row = {
    id = id, chain = id, index = 0, chain_type = new.job.type, keep_completed = new.keep_completed,
    latest = id, latest_index = 0, needed = 0,
  }
  if new.key then
    local field = key_field(new.job.type, new.key.key)
    local former = pointed_at(field)
    if former then
      free_key(former)
    end
    row.held = true
    point(field, id)
  end
  insert_job(row, new.job, list)
  if row.status == 'failed' then
    close_chain(row, 'failed')
  end
  return { new = { job = summary(row), repeated = false } }
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
    return { new = { job = summary(latest(stored)), repeated = true } }
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
  local row = { id = new.id, chain = of.id, index = of.latest_index + 1, chain_type = of.chain_type }
  insert_job(row, new, list)
  add(later_jobs(of.id), row.index, row.id)
  if of.latest_index == 0 then
    add(long_chains(of.chain_type), 0, member(of))
  end
  change(of)
  of.latest, of.latest_index = row.id, row.index
  return row
end

