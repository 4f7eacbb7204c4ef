-- Rows: one string per job (`layout.lua`).

local STATUSES = { 'blocked', 'pending', 'running', 'completed', 'failed', 'cancelled' }
local ENDED_AS = {
  'completed', 'continued', 'retried', 'rescheduled', 'failed', 'exhausted', 'released', 'reaped', 'cancelled',
  'displaced',
}

local function numbers(list)
  local found = {}
  for at, value in ipairs(list) do
    found[value] = at
  end
  return found
end

local STATUS_NUMBERS, ENDED_AS_NUMBERS = numbers(STATUSES), numbers(ENDED_AS)

local rows = {}
-- The rows to write.
local dirty = {}

-- Whether the row of a chain's first job has the columns of a chain that are not in a plain row.
local function is_long(row)
  return row.index == 0 and row.latest ~= row.id
end

-- The columns that a plain row lacks. `waits` is the number of chains that the job still waits for, `needed` the
-- number of open or failed jobs that have the chain as a blocker. The end of a chain with one job is that job's end.
local function pack_extra(row)
  local later, long = row.index > 0, is_long(row)
  local needed = not later and row.needed > 0 and row.needed or nil
  if not (later or long or needed or row.waits > 0 or row.outside or row.blockers) then
    return ''
  end
  return cmsgpack.pack(
    row.waits, row.outside, row.blockers, later and row.chain or nil, row.index, later and row.chain_type or nil,
    long and row.latest or nil, long and row.latest_index or nil, needed, long and row.chain_closed or nil,
    long and row.closed_as or nil, long and row.trim_at or nil
  )
end

local function pack_row(row)
  if not row.packed then
    local worker_name, error_text, extra = row.worker_name or '', row.error or '', pack_extra(row)
    local flags = (row.cancel and CANCEL or 0) + (row.closed_by and BY_WORKER or 0) + (row.held and HELD or 0)
      + (row.index > 0 and LATER or 0) + (row.large and LARGE or 0) + (row.error and HAS_ERROR or 0)
    row.packed = struct.pack(SIZES, #row.inline_input, #row.inline_output) .. struct.pack(
      HEAD, STATUS_NUMBERS[row.status], flags, row.ended_as and ENDED_AS_NUMBERS[row.ended_as] or 0, row.priority,
      #worker_name, #row.type, #error_text, #extra, row.attempt, row.version, row.fence, row.due,
      row.lease_until or -1, row.started or -1, row.closed or -1, row.retain_until or -1
    ) .. (row.worker or NO_ID) .. (row.request or NO_ID) .. row.seq_text
      .. struct.pack('<i8i8', row.created, row.keep_completed or -1)
      .. worker_name .. row.type .. error_text .. extra .. row.constants .. row.inline_input .. row.inline_output
  end
  return row.packed
end

local function time_or_nil(time)
  return time ~= -1 and time or nil
end

local function id_or_nil(id)
  return id ~= NO_ID and id or nil
end

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function unpack_constants(row, constants)
  row.constants = constants
  row.max_attempts, row.on_failure, row.trace, row.key, row.hold, row.window, row.keep_failed, row.keep_cancelled,
  row.chain_trace = cmsgpack.unpack(constants)
end

local function unpack_extra(row, extra)
  if extra ~= '' then
    row.waits, row.outside, row.blockers, row.chain, row.index, row.chain_type, row.latest, row.latest_index,
    row.needed, row.chain_closed, row.closed_as, row.trim_at = cmsgpack.unpack(extra)
  else
    row.waits, row.outside, row.blockers, row.chain, row.index, row.chain_type, row.latest, row.latest_index,
    row.needed, row.chain_closed, row.closed_as, row.trim_at = 0, nil, nil, nil, 0, nil, nil, nil, nil, nil, nil, nil
  end
  row.chain, row.chain_type = row.chain or row.id, row.chain_type or row.type
  if row.index == 0 then
    row.needed = row.needed or 0
    if not row.latest then
      row.latest, row.latest_index, row.chain_closed = row.id, 0, row.closed
      row.closed_as = row.closed and row.status or nil
    end
  end
end

-- Returns a payload if the row contains it, or an empty string if it has its own key.
local function inline(payload)
  return #payload <= INLINE_MAX and payload or ''
end

local function set_input(row, input)
  row.input, row.inline_input = input, inline(input)
end

-- Call `change` first.
local function set_output(row, output)
  row.output, row.inline_output, row.output_changed = output, inline(output), true
end

-- Sets the payloads that a stored row contains.
local function unpack_payloads(row, input, output)
  row.inline_input, row.inline_output = input, output
  if input ~= '' then
    row.input = input
  end
  if output ~= '' then
    row.output = output
  end
end

-- Sets all columns from a stored row. Returns false if this cannot be a row.
local function unpack_row(row, packed)
  if #packed < NAME then
    return false
  end
  local input_length, output_length, status, flags, ended_as, priority, name_length, type_length, error_length,
    extra_length, attempt, version, fence, due, lease_until, started, closed, retain_until =
    struct.unpack(SIZES .. HEAD, packed)
  local output_at = #packed - output_length + 1
  local input_at = output_at - input_length
  if not STATUSES[status] or input_at <= NAME + name_length + type_length + error_length + extra_length then
    return false
  end
  local type_at = NAME + name_length
  local error_at = type_at + type_length
  local extra_at = error_at + error_length
  row.packed, row.status, row.ended_as, row.priority = packed, STATUSES[status], ENDED_AS[ended_as], priority
  row.attempt, row.version, row.fence, row.due = attempt, version, fence, due
  row.lease_until, row.started = time_or_nil(lease_until), time_or_nil(started)
  row.closed, row.retain_until = time_or_nil(closed), time_or_nil(retain_until)
  row.worker = id_or_nil(string.sub(packed, WORKER, REQUEST - 1))
  row.request = id_or_nil(string.sub(packed, REQUEST, SEQ - 1))
  row.seq_text = string.sub(packed, SEQ, CREATED - 1)
  local created, keep_completed = struct.unpack('<i8i8', packed, CREATED)
  row.seq, row.created, row.keep_completed = tonumber(row.seq_text), created, time_or_nil(keep_completed)
  row.worker_name = name_length > 0 and string.sub(packed, NAME, type_at - 1) or nil
  row.type = string.sub(packed, type_at, error_at - 1)
  row.error = has(flags, HAS_ERROR) and string.sub(packed, error_at, extra_at - 1) or nil
  row.cancel, row.held, row.large = has(flags, CANCEL) or nil, has(flags, HELD) or nil, has(flags, LARGE) or nil
  row.closed_by = has(flags, BY_WORKER) and row.worker or nil
  unpack_extra(row, string.sub(packed, extra_at, extra_at + extra_length - 1))
  unpack_constants(row, string.sub(packed, extra_at + extra_length, input_at - 1))
  unpack_payloads(row, string.sub(packed, input_at, output_at - 1), string.sub(packed, output_at))
  return true
end

-- Returns the row of a job from its stored form, unless it is already known.
local function adopt(id, packed)
  local row = rows[id]
  if row == nil then
    row = { id = id }
    if not unpack_row(row, packed) then
      error({ err = 'WRONGTYPE key ' .. name('job', id) .. ' is not a job' })
    end
    rows[id] = row
  end
  return row
end

-- Returns the row of a job, or nil.
local function job(id)
  local row = rows[id]
  if row == nil then
    local packed = read('GET', name('job', id))
    if packed then
      row = adopt(id, packed)
    else
      rows[id] = false
    end
  end
  return row or nil
end

local function touch(row)
  if not row.dirty then
    row.dirty = true
    dirty[#dirty + 1] = row
  end
end

-- Call this before changing a job, its chain or its output.
local function change(row)
  touch(row)
  if taking_back() then
    local packed, former_output = pack_row(row), row.output
    on_undo(function()
      unpack_row(row, packed)
      row.output = former_output
    end)
  end
  row.packed = nil
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

-- Reads the input and output that have their own keys, unless they have been read.
local function read_whole(row)
  if not row.whole then
    row.whole = true
    if not row.input then
      local key = name('input', row.id)
      row.input = must(read('GET', key), 'key ' .. key)
    end
    if row.status == 'completed' and not row.output then
      row.output = read('GET', name('output', row.id)) or nil
    end
  end
end

local function output(row)
  if row.status == 'completed' and not row.output then
    read_whole(row)
  end
  return row.output
end

-- Returns a stored number, or 0.
local function stored_number(key, value)
  return tonumber(value or 0) or error({ err = 'WRONGTYPE key ' .. key .. ' is not a number' })
end

-- The number of the latest job, and the largest fence of a deleted one.
local numbers = {}

local function read_numbers()
  if not numbers.seq then
    local key = tag .. ':meta'
    local values = read('HMGET', key, 'layout', 'seq', 'deleted_fence')
    if values[1] and values[1] ~= LAYOUT then
      error({ err = 'WRONGTYPE key ' .. key .. ' has layout ' .. values[1] .. ' and should have ' .. LAYOUT })
    end
    numbers.stored_seq, numbers.stored_deleted = stored_number(key, values[2]), stored_number(key, values[3])
    numbers.seq, numbers.deleted_fence = numbers.stored_seq, numbers.stored_deleted
  end
end

-- Returns the next number in the order of creation.
local function next_seq()
  read_numbers()
  set(numbers, 'seq', numbers.seq + 1)
  return numbers.seq
end

-- Returns the fence of a job that has never been acquired. A deleted job may have had its id, and may have been created in
-- the same millisecond.
local function new_job_fence()
  read_numbers()
  return creation_fence(now, numbers.deleted_fence)
end

-- Remembers the fence of a job that is deleted. One that is not exact, because the server's clock was wrong, would keep all
-- later fences from growing.
local function note_deleted_fence(fence)
  if fence >= 2 ^ 53 then
    return
  end
  read_numbers()
  set(numbers, 'deleted_fence', math.max(numbers.deleted_fence, fence))
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
local function summary(row)
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
    id = row.id, row = pack_row(row), input = row.inline_input == '' and row.input or nil,
    output = row.inline_output == '' and row.output or nil, open = open,
  }
end

-- Returns a chain in the form of replies.
local function view_chain(of)
  local last = of.latest ~= of.id and latest(of) or nil
  return { first = view(of), latest = last and view(last) }
end

-- Returns the commands that write the changes of rows.
local function row_commands()
  local commands, command = {}, { 'MSET' }
  local function write(kind, row, value)
    command[#command + 1], command[#command + 2] = name(kind, row.id), value
  end
  for _, row in ipairs(dirty) do
    -- A row that was undone is no longer in the table.
    if rows[row.id] == row then
      if #command > MEMBERS_MAX then
        commands[#commands + 1], command = command, { 'MSET' }
      end
      write('job', row, pack_row(row))
      if row.new and row.inline_input == '' then
        write('input', row, row.input)
      end
      if row.output_changed and row.output and row.inline_output == '' then
        write('output', row, row.output)
      end
    end
  end
  if command[2] then
    commands[#commands + 1] = command
  end
  return commands
end

