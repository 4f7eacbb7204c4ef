-- Rows: one hash for each job. The hash of a chain's first job has the chain's own facts too.

-- What is read of a row; payloads and errors can be large and are read when they are asked for.
local FIELDS = {
  -- The job.
  'seq', 'chain', 'index', 'type', 'chain_type', 'status', 'priority', 'due', 'attempt', 'max_attempts', 'fence',
  'version', 'worker', 'request', 'lease_until', 'cancel', 'blockers', 'waits', 'on_failure', 'created', 'started',
  'closed', 'closed_by', 'trace', 'ended_as',
  -- Its chain, in the first job's row.
  'key', 'hold', 'window', 'held', 'keep_completed', 'keep_failed', 'keep_cancelled', 'chain_trace', 'latest',
  'latest_index', 'chain_closed', 'closed_as', 'retain_until', 'needed', 'trim_at',
}
local TEXTS = { 'input', 'output', 'error' }
local NUMBERS = {
  seq = true, index = true, priority = true, due = true, attempt = true, max_attempts = true, fence = true,
  version = true, lease_until = true, waits = true, created = true, started = true, closed = true, window = true,
  keep_completed = true, keep_failed = true, keep_cancelled = true, latest_index = true, chain_closed = true,
  retain_until = true, needed = true, trim_at = true,
}
-- What a field that is not stored means. `waits` counts the chains that the job still waits for, and `needed` the
-- blockers of other jobs that the chain is, as long as those are open or failed.
local DEFAULTS = {
  index = 0, priority = 0, attempt = 0, version = 0, waits = 0, on_failure = 'wait', latest_index = 0, needed = 0,
}
local STORED = {}
for _, list in ipairs({ FIELDS, TEXTS }) do
  for _, field in ipairs(list) do
    STORED[field] = true
  end
end

local rows = {}
local counter = { hash = false }

-- A row with nothing but defaults.
local function blank(id)
  local row = { id = id, hash = name('job', id), known = {} }
  for field, value in pairs(DEFAULTS) do
    row[field] = value
  end
  return row
end

-- The row of a job, or nil.
local function job(id)
  local row = rows[id]
  if row == nil then
    local values = read('HMGET', name('job', id), unpack(FIELDS))
    row = values[1] and blank(id)
    for at, field in ipairs(row and FIELDS or {}) do
      local value = values[at]
      if value then
        row[field] = NUMBERS[field] and tonumber(value) or value
      end
    end
    rows[id] = row
  end
  return row or nil
end

-- The row of a chain, or nil.
local function chain(id)
  local row = job(id)
  return row and row.index == 0 and row or nil
end

-- The row of something that must be stored, because another row names it.
local function must(row, what)
  if not row then
    error({ err = 'ERR ' .. what .. ' is missing' })
  end
  return row
end

local function latest(of)
  return must(job(of.latest), 'the latest job of chain ' .. of.id)
end

-- The input, output or error of a job.
local function text(row, field)
  if not row.known[field] then
    row[field] = read('HGET', row.hash, field) or nil
    row.known[field] = true
  end
  return row[field]
end

-- Reads input, output and error at once, as far as they are not known.
local function read_texts(row)
  local values = read('HMGET', row.hash, unpack(TEXTS))
  for at, field in ipairs(TEXTS) do
    if not row.known[field] then
      row[field] = values[at] or nil
      row.known[field] = true
    end
  end
end

local function set_text(row, field, value)
  set(row.known, field, true)
  set(row, field, value)
end

-- A place in the order of creation behind all others.
local function next_seq()
  if not counter.value then
    local key = tag .. ':seq'
    counter.value = tonumber(read('GET', key) or 0) or error({ err = 'WRONGTYPE key ' .. key .. ' is not a number' })
  end
  set(counter, 'value', counter.value + 1)
  return counter.value
end

-- The blockers of a job as they were declared: `{ chain, trace }` each.
local function blockers(row)
  if not row.blocker_list then
    row.blocker_list = row.blockers and cmsgpack.unpack(row.blockers) or {}
  end
  return row.blocker_list
end

-- The chains that a job still waits for, as a set.
local function open_waits(row)
  if not row.open then
    row.open = {}
    if row.waits > 0 then
      for _, id in ipairs(read('SMEMBERS', name('waits', row.id))) do
        row.open[id] = true
      end
    end
  end
  return row.open
end

-- Where a job stands.
local function placed(row)
  return { job = row.id, chain = row.chain, status = row.status, due = row.due }
end

-- How long a chain stays after it closed.
local function view_retention(of)
  return { completed = of.keep_completed, failed = of.keep_failed, cancelled = of.keep_cancelled }
end

-- A job as readers see it.
local function view(row)
  read_texts(row)
  local open, list = open_waits(row), {}
  for at, blocker in ipairs(blockers(row)) do
    list[at] = { chain = blocker.chain, resolved = not open[blocker.chain], trace = blocker.trace }
  end
  local lease = row.status == 'running'
    and { worker = row.worker, request = row.request, ['until'] = row.lease_until }
    or nil
  return {
    id = row.id, chain = row.chain, index = row.index, type = row.type, chain_type = row.chain_type,
    status = row.status, input = row.input, output = row.output, error = row.error,
    priority = row.priority, due = row.due, attempt = row.attempt, max_attempts = row.max_attempts,
    fence = row.fence, version = row.version, lease = lease, cancel = row.cancel ~= nil, blockers = list,
    on_failure = row.on_failure, created = row.created, started = row.started, closed = row.closed,
    closed_by = row.closed_by, trace = row.trace,
  }
end

-- The commands that write what changed of rows.
local function row_commands()
  local fields, order, commands = {}, {}, {}
  for _, change in ipairs(changes) do
    local row, field = change[1], change[2]
    if row.hash and STORED[field] then
      if not fields[row] then
        fields[row] = {}
        order[#order + 1] = row
      end
      fields[row][field] = true
    end
  end
  for _, row in ipairs(order) do
    local put, drop = { 'HSET', row.hash }, { 'HDEL', row.hash }
    for field in pairs(fields[row]) do
      if row[field] == nil then
        drop[#drop + 1] = field
      else
        put[#put + 1] = field
        put[#put + 1] = row[field]
      end
    end
    if not row.gone and #put > 2 then commands[#commands + 1] = put end
    if not row.gone and #drop > 2 then commands[#commands + 1] = drop end
  end
  return commands
end

-- Writes everything that was staged.
local function commit()
  if counter.value then
    stage('SET', tag .. ':seq', counter.value)
  end
  write_all(row_commands())
end

