-- Rows: one hash per job. Values that are read together share a field: `fixed` never changes, `state` changes with
-- nearly every command, and `chain`, in the row of a chain's first job, has the chain's mutable columns. Each field
-- is the concatenation of its packed column values. `input` and `output` can be large and are read only if needed.

local rows = {}
-- The rows to write.
local dirty = {}
local counter = {}

local function pack_fixed(row)
  local later = row.index > 0
  return cmsgpack.pack(
    row.seq, later and row.chain or nil, row.index, row.type, later and row.chain_type or nil, row.priority,
    row.max_attempts, row.on_failure, row.created, row.trace, row.blockers,
    row.key, row.hold, row.window, row.keep_completed, row.keep_failed, row.keep_cancelled, row.chain_trace
  )
end

-- The packed state of a row. `waits` is the number of chains that the job still waits for.
local function pack_state(row)
  if not row.state then
    row.state = cmsgpack.pack(
      row.status, row.due, row.attempt, row.fence, row.version, row.worker, row.worker_name, row.request, row.lease_until, row.cancel,
      row.waits, row.started, row.closed, row.closed_by, row.ended_as, row.outside, row.error
    )
  end
  return row.state
end

local function unpack_state(row, packed)
  row.status, row.due, row.attempt, row.fence, row.version, row.worker, row.worker_name, row.request, row.lease_until, row.cancel,
  row.waits, row.started, row.closed, row.closed_by, row.ended_as, row.outside, row.error =
    cmsgpack.unpack(packed)
  row.state = packed
end

-- The packed mutable columns of a chain. `needed` is the number of open or failed jobs that have the chain as a
-- blocker.
local function pack_chain(of)
  if not of.chain_state then
    of.chain_state = cmsgpack.pack(
      of.latest, of.latest_index, of.held, of.needed, of.chain_closed, of.closed_as, of.retain_until, of.trim_at
    )
  end
  return of.chain_state
end

local function unpack_chain(of, packed)
  of.latest, of.latest_index, of.held, of.needed, of.chain_closed, of.closed_as, of.retain_until, of.trim_at =
    cmsgpack.unpack(packed)
  of.chain_state = packed
end

-- Creates a row with room for all columns, so that the table does not grow step by step.
local function new_row(id, fixed)
  local seq, chain_id, place_in_chain, job_type, chain_type, priority, max_attempts, on_failure, created, trace,
    blocker_list, key, hold, window, keep_completed, keep_failed, keep_cancelled, chain_trace
  if fixed then
    seq, chain_id, place_in_chain, job_type, chain_type, priority, max_attempts, on_failure, created, trace,
    blocker_list, key, hold, window, keep_completed, keep_failed, keep_cancelled, chain_trace = cmsgpack.unpack(fixed)
  end
  return {
    id = id, hash = name('job', id), fixed = fixed, input = nil, output = nil, whole = nil, dirty = nil, member = nil,
    seq = seq, chain = chain_id or id, index = place_in_chain, type = job_type, chain_type = chain_type or job_type,
    priority = priority, max_attempts = max_attempts, on_failure = on_failure, created = created, trace = trace,
    blockers = blocker_list, key = key, hold = hold, window = window, keep_completed = keep_completed,
    keep_failed = keep_failed, keep_cancelled = keep_cancelled, chain_trace = chain_trace,
    state = nil, status = nil, due = nil, attempt = nil, fence = nil, version = nil, worker = nil, worker_name = nil, request = nil,
    lease_until = nil, cancel = nil, waits = nil, started = nil, closed = nil, closed_by = nil, ended_as = nil,
    outside = nil, error = nil, chain_state = nil, latest = nil, latest_index = nil, held = nil, needed = nil,
    chain_closed = nil, closed_as = nil, retain_until = nil, trim_at = nil,
  }
end

-- Returns the row of a job, or nil. With `whole`, also reads its input and output.
local function job(id, whole)
  local row = rows[id]
  if row == nil then
    local key = name('job', id)
    local values = whole and read('HMGET', key, 'fixed', 'state', 'chain', 'input', 'output')
      or read('HMGET', key, 'fixed', 'state', 'chain')
    row = false
    if values[1] and values[2] then
      row = new_row(id, values[1])
      unpack_state(row, values[2])
      if values[3] then
        unpack_chain(row, values[3])
      end
      if whole then
        row.whole, row.input, row.output = true, values[4], values[5] or nil
      end
    end
    rows[id] = row
  end
  return row or nil
end

local function touch(row)
  if not row.dirty then
    row.dirty = true
    dirty[#dirty + 1] = row
  end
end

-- Call this before changing the state of a job or its output.
local function change(row)
  touch(row)
  if taking_back() then
    local state, former_output = pack_state(row), row.output
    on_undo(function()
      unpack_state(row, state)
      row.output = former_output
    end)
  end
  row.state = nil
end

-- Call this before changing a chain.
local function change_chain(of)
  touch(of)
  if taking_back() then
    local state = pack_chain(of)
    on_undo(function() unpack_chain(of, state) end)
  end
  of.chain_state, of.chain_changed = nil, true
end

-- Returns the row of a chain, or nil.
local function chain(id)
  local row = job(id)
  return row and row.index == 0 and row or nil
end

-- Returns a row that must be stored, because another row refers to it.
local function must(row, what)
  if not row then
    error({ err = 'ERR ' .. what .. ' is missing' })
  end
  return row
end

local function chain_of(row)
  return must(chain(row.chain), 'chain ' .. row.chain)
end

local function latest(of)
  return must(job(of.latest), 'the latest job of chain ' .. of.id)
end

-- Reads the input and output of a row, unless they have been read.
local function read_whole(row)
  if not row.whole then
    local values = read('HMGET', row.hash, 'input', 'output')
    row.whole, row.input, row.output = true, values[1], row.output or values[2] or nil
  end
end

local function output(row)
  if row.status == 'completed' and not row.output then
    read_whole(row)
  end
  return row.output
end

-- Returns a number that is stored under its own key, or 0.
local function stored_number(key, value)
  return tonumber(value or 0) or error({ err = 'WRONGTYPE key ' .. key .. ' is not a number' })
end

-- Returns the next number in the order of creation.
local function next_seq()
  if not counter.value then
    local key = tag .. ':seq'
    counter.value = stored_number(key, read('GET', key))
  end
  set(counter, 'value', counter.value + 1)
  return counter.value
end

-- Returns the blockers of a job as declared: `{ chain, trace }` each.
local function blockers(row)
  if not row.blocker_list then
    row.blocker_list = row.blockers and cmsgpack.unpack(row.blockers) or {}
  end
  return row.blocker_list
end

-- Returns the chains that a job waits for.
local function waits(row)
  return index(name('waits', row.id))
end

-- Returns the chains that a job still waits for, as a set.
local function open_waits(row)
  if not row.open then
    row.open = {}
    if row.waits > 0 then
      for _, id in ipairs(read('ZRANGE', waits(row).key, 0, -1)) do
        row.open[id] = true
      end
    end
  end
  return row.open
end

-- Removes the job's wait for this chain.
local function stop_waiting(row, chain_id)
  remove(waits(row), chain_id)
  set(open_waits(row), chain_id, nil)
  change(row)
  row.waits = row.waits - 1
end

-- Returns the ids, status and due time of a job.
local function placed(row)
  return { job = row.id, chain = row.chain, status = row.status, due = row.due }
end

-- Returns a job in the form of replies, which the client unpacks.
local function view(row)
  read_whole(row)
  local open = nil
  if row.waits > 0 then
    open = {}
    for id in pairs(open_waits(row)) do
      open[#open + 1] = id
    end
  end
  return {
    id = row.id, fixed = row.fixed, state = pack_state(row), input = row.input, output = row.output, open = open,
  }
end

-- Returns a chain in the form of replies.
local function view_chain(of)
  local last = of.latest ~= of.id and latest(of) or nil
  return { first = view(of), latest = last and view(last), chain = pack_chain(of) }
end

-- Returns the commands that write the changes of rows.
local function row_commands()
  local commands = {}
  for _, row in ipairs(dirty) do
    -- A row that was undone is no longer in the table.
    if rows[row.id] == row then
      local command = { 'HSET', row.hash, 'state', pack_state(row) }
      if row.new then
        command[5], command[6], command[7], command[8] = 'fixed', row.fixed, 'input', row.input
      end
      if row.chain_changed then
        command[#command + 1] = 'chain'
        command[#command + 1] = pack_chain(row)
      end
      if row.output_changed and row.output then
        command[#command + 1] = 'output'
        command[#command + 1] = row.output
      end
      commands[#commands + 1] = command
    end
  end
  return commands
end

