-- The short path of acquire, settle and exchange: attempts of plain jobs that complete, and plain jobs to acquire.
--
-- Arguments: an empty string, the time or an empty string, the number of settlements and of types; request, worker,
-- worker's name and maximum of the acquire; for each type its name, quota and lease; for each settlement its fence,
-- retention (-1 for the chain's own) and job in one string, and its output.

local FIRST_TYPE = 9

-- Beginnings of a row.
local HEAD_TO_START, HEAD_TO_DUE = SIZES .. '<BBBbBBI2I4I4I4i8i8i8i8', SIZES .. '<BBBbBBI2I4I4I4i8i8'

-- The settlements of a flat request.
local function flat_settlements()
  local list, first = {}, FIRST_TYPE + 3 * tonumber(ARGV[4])
  for at = first, #ARGV, 2 do
    local fence, keep = read_struct('<i8i8', ARGV[at])
    list[#list + 1] = {
      job = sub(ARGV[at], 17), fence = fence, outcome = 'complete', output = at + 1, retention = keep ~= -1 and keep or nil,
      create = {},
    }
  end
  return list
end

-- The acquire of a flat request.
local function flat_acquire()
  local types = {}
  for at = FIRST_TYPE, FIRST_TYPE + 3 * tonumber(ARGV[4]) - 3, 3 do
    types[#types + 1] = { type = ARGV[at], max = tonumber(ARGV[at + 1]), lease = tonumber(ARGV[at + 2]) }
  end
  return {
    request = ARGV[5], worker = ARGV[6], worker_name = ARGV[7] ~= '' and ARGV[7] or nil, max = tonumber(ARGV[8]),
    types = types,
  }
end

-- The changes of the call: commands in the order of their execution, rows and outputs with their own keys to write, and
-- changes of numbers.
local function new_changes()
  return {
    rows = { 'MSET' }, apart = {}, removals = {}, additions = {}, counts = {}, held = {}, open = {}, running = {},
    leaving = {},
  }
end

-- The changes of a type's running jobs.
local function running_of(changes, job_type)
  local found = changes.running[job_type]
  if not found then
    local key = tag .. ':running:' .. job_type
    found = { key = key, gone = { 'ZREM', key, of = 'ZREM running' }, new = { 'ZADD', key, of = 'ZADD running' }, settled = 0 }
    changes.running[job_type] = found
  end
  return found
end

-- Decides the settlements. Returns the new rows, or nil if one is not plain.
local function settle_plain(changes, now, first, settlements)
  local keys, ids, seen, replies, rows, apart = { 'MGET' }, {}, {}, {}, changes.rows, changes.apart
  for at = 1, settlements do
    local id = sub(ARGV[first + 2 * at - 2], 17)
    if seen[id] then
      return nil
    end
    seen[id], ids[at], keys[at + 1] = true, id, tag .. ':job:' .. id
  end
  local stored = try(unpack(keys))
  local held, open, leaving, job_type, running, leavers, latest_leave = changes.held, changes.open, changes.leaving
  for at = 1, settlements do
    local row, id = stored and stored[at], ids[at]
    if not row or #row < NAME then
      return nil
    end
    local input_length, _, status, flags, _, priority, name_length, type_length, error_length, extra_length, attempt,
      version, fence, due, _, started = read_struct(HEAD_TO_START, row)
    local wanted, keep = read_struct('<i8i8', ARGV[first + 2 * at - 2])
    if status ~= 3 or fence ~= wanted or extra_length ~= 0 then
      return nil
    end
    if keep == -1 then
      keep = read_struct('<i8', row, CREATED + 8)
    end
    local retain_until, type_at = math.min(now + keep, TIME_MAX), NAME + name_length
    local seq_text, type_end = sub(row, SEQ, CREATED - 1), type_at + type_length
    local row_type, rest = sub(row, type_at, type_end - 1), nil
    if flags >= HAS_ERROR then
      flags, rest = flags - HAS_ERROR, sub(row, SEQ, type_end - 1) .. sub(row, type_end + error_length)
    else
      rest = sub(row, SEQ)
    end
    local output = ARGV[first + 2 * at - 1]
    if #output > INLINE_MAX then
      apart[#apart + 1] = tag .. ':output:' .. id
      apart[#apart + 1] = output
      output = ''
    end
    local closed = pack(
      SIZES_AND_HEAD, input_length, #output, 4, flags + BY_WORKER, 1, priority, name_length, type_length, 0, 0,
      attempt, version + 1, fence, due, -1, started, now, retain_until
    ) .. sub(row, WORKER, REQUEST - 1) .. NO_ID .. rest .. output
    replies[at] = closed
    rows[2 * at], rows[2 * at + 1] = keys[at + 1], closed
    if row_type ~= job_type then
      job_type, running = row_type, running_of(changes, row_type)
    end
    local member, request, block = seq_text .. id, sub(row, REQUEST, SEQ - 1), sub(seq_text, 1, BLOCK_DIGITS)
    running.settled = running.settled + 1
    running.gone[running.settled + 2] = member
    held[request] = (held[request] or 0) - 1
    open[block] = (open[block] or 0) - 1
    local leaves_at = math.max(retain_until, math.min(now + REPEAT_WINDOW, TIME_MAX))
    if leaves_at ~= latest_leave then
      latest_leave, leavers = leaves_at, leaving[leaves_at] or {}
      leaving[leaves_at] = leavers
    end
    leavers[#leavers + 1] = member
  end
  return replies
end

-- Returns the pending sets of the requested types, or nil.
local function pending_sets(types, max)
  local names, sets = {}, {}
  for at = 1, types do
    names[at] = ARGV[FIRST_TYPE + 3 * at - 3]
  end
  local paused = try('SMISMEMBER', tag .. ':paused', unpack(names))
  for at, job_type in ipairs(names) do
    local quota = math.min(tonumber(ARGV[FIRST_TYPE + 3 * at - 2]), max)
    local listed = paused and ((paused[at] == 1 or quota == 0) and {}
      or try('ZRANGEBYLEX', tag .. ':pending_sets', '[' .. job_type .. '\0', '(' .. job_type .. '\1'))
    if not listed then
      return nil
    end
    for _, name in ipairs(listed) do
      local priority = sub(name, #job_type + 2)
      sets[#sets + 1] = {
        key = tag .. ':pending:' .. priority .. ':' .. job_type, listed = name, priority = tonumber(priority),
        quota = quota, of = at, type = job_type, taken = 0,
      }
    end
  end
  return sets
end

-- Chooses among the due jobs of several pending sets, by priority, due time and order of creation.
local function choose(sets, max)
  local entries, members, set_of, left = {}, {}, {}, {}
  for _, set in ipairs(sets) do
    for at = 1, #set.due, 2 do
      entries[#entries + 1] = { set = set, member = set.due[at], due = tonumber(set.due[at + 1]) }
    end
    left[set.of] = set.quota
  end
  table.sort(entries, function(one, other)
    if one.set.priority ~= other.set.priority then
      return one.set.priority > other.set.priority
    elseif one.due ~= other.due then
      return one.due < other.due
    end
    return one.member < other.member
  end)
  for _, entry in ipairs(entries) do
    local set = entry.set
    if #members < max and left[set.of] > 0 then
      left[set.of], set.taken = left[set.of] - 1, set.taken + 1
      members[#members + 1], set_of[#members + 1] = entry.member, set
    end
  end
  return members, set_of
end

-- Returns the due jobs to acquire, in the order in which they run, and the pending set of each, if there are several.
-- Returns nil if a set cannot be read.
local function due_jobs(now, sets, max)
  for _, set in ipairs(sets) do
    set.due = sets[2] and try('ZRANGE', set.key, '-inf', now, 'BYSCORE', 'LIMIT', 0, set.quota, 'WITHSCORES')
      or not sets[2] and try('ZRANGE', set.key, '-inf', now, 'BYSCORE', 'LIMIT', 0, set.quota)
    set.card = set.due and try('ZCARD', set.key)
    if not set.card then
      return nil
    end
  end
  if not sets[2] then
    local set = sets[1]
    set.taken = #set.due
    return set.due, nil
  end
  return choose(sets, max)
end

-- Returns the inputs that have their own keys, by position, or nil if one cannot be read.
local function read_inputs(keys, positions)
  local inputs, found = {}, keys[2] and try(unpack(keys)) or {}
  for at, position in ipairs(positions) do
    if not found[at] then
      return nil
    end
    inputs[position] = found[at]
  end
  return inputs
end

-- Decides the acquire. Returns id, new row and input of each job, or nil if one is not plain. The input is empty if the row
-- contains it.
local function acquire_plain(changes, now, types)
  local max, rows, replies, ids, keys = tonumber(ARGV[8]), changes.rows, {}, {}, { 'MGET' }
  local sets = pending_sets(types, max)
  if sets and not sets[1] then
    return replies
  end
  local members, set_of
  if sets then
    members, set_of = due_jobs(now, sets, max)
  end
  if not members or not members[1] then
    return members and replies
  end
  local taken, input_keys, positions = #members, { 'MGET' }, {}
  for at, member in ipairs(members) do
    local id = sub(member, 17)
    ids[at], keys[at + 1] = id, tag .. ':job:' .. id
  end
  local stored, attempt_ids, name, written = try(unpack(keys)), ARGV[6] .. ARGV[5], ARGV[7], #rows
  local name_size, latest_set, lease_until, until_text, new, new_size = #name, nil, nil, nil, nil, nil
  for at, member in ipairs(members) do
    local row, set = stored and stored[at], set_of and set_of[at] or sets[1]
    if not row or #row < NAME then
      return nil
    end
    local input_length, _, status, flags, _, priority, name_length, type_length, error_length, extra_length, attempt,
      version, fence, due = read_struct(HEAD_TO_DUE, row)
    if status ~= 2 or extra_length ~= 0 or flags % HAS_ERROR >= LARGE then
      return nil
    end
    if set ~= latest_set then
      latest_set, lease_until = set, math.min(now + tonumber(ARGV[FIRST_TYPE + 3 * set.of - 1]), TIME_MAX)
      until_text, new = string.format('%.0f', lease_until), running_of(changes, set.type).new
      new_size = #new
    end
    -- A pending job that is the only one of its chain has no end.
    local leased = pack(
      SIZES_AND_HEAD, input_length, 0, 3, flags, 0, priority, name_size, type_length, error_length, 0, attempt + 1,
      version + 1, fence + 1, due, lease_until, now, -1, -1
    ) .. attempt_ids .. sub(row, SEQ, NAME - 1) .. name .. sub(row, NAME + name_length)
    rows[written + 1], rows[written + 2], written = keys[at + 1], leased, written + 2
    replies[3 * at - 2], replies[3 * at - 1], replies[3 * at] = ids[at], leased, ''
    if input_length == 0 then
      positions[#positions + 1], input_keys[#input_keys + 1] = 3 * at, tag .. ':input:' .. ids[at]
    end
    new[new_size + 1], new[new_size + 2], new_size = until_text, member, new_size + 2
  end
  local inputs = read_inputs(input_keys, positions)
  if not inputs then
    return nil
  end
  for position, input in pairs(inputs) do
    replies[position] = input
  end
  for _, set in ipairs(sets) do
    if set.taken > 0 then
      changes.removals[#changes.removals + 1] = {
        'ZREMRANGEBYRANK', set.key, 0, set.taken - 1, of = 'ZREMRANGEBYRANK pending',
      }
      local pending = 'pending:' .. set.type
      changes.counts[pending] = (changes.counts[pending] or 0) - set.taken
      if set.taken == set.card then
        changes.additions[#changes.additions + 1] = { 'ZREM', tag .. ':pending_sets', set.listed }
      end
    end
  end
  changes.held[ARGV[5]] = taken
  changes.additions[#changes.additions + 1] = {
    'SET', tag .. ':request:' .. ARGV[5], table.concat(ids), of = 'SET request',
  }
  return replies
end

-- Adds the changes of the sets of running jobs. Returns false if one is not a sorted set.
local function add_running(changes)
  for job_type, of in pairs(changes.running) do
    local card = try('ZCARD', of.key)
    if not card then
      return false
    end
    local taken = (#of.new - 2) / 2
    local left = card - of.settled + taken
    changes.counts['running:' .. job_type] = taken - of.settled
    if of.settled > 0 then
      changes.counts['completed:' .. job_type] = of.settled
      table.insert(changes.removals, 1, of.gone)
    end
    if taken > 0 then
      changes.additions[#changes.additions + 1] = of.new
    end
    if (left == 0 or card == 0) and not has_kind(tag .. ':busy', 'zset') then
      return false
    elseif left == 0 then
      changes.additions[#changes.additions + 1] = { 'ZREM', tag .. ':busy', job_type }
    elseif card == 0 then
      changes.additions[#changes.additions + 1] = { 'ZADD', tag .. ':busy', 0, job_type }
    end
  end
  return true
end

-- Adds the changes of the numbers, and what follows from them. Returns false if a key is not as expected.
local function add_counted(changes)
  local more = changes.additions
  local counts, put_counts, drop_counts = add_numbers(tag .. ':counts', changes.counts)
  local held, put_held, drop_held = add_numbers(tag .. ':held', changes.held)
  local in_blocks = {}
  for block, by in pairs(changes.open) do
    in_blocks['open:' .. block] = by
  end
  local open, put_open, drop_open = add_numbers(tag .. ':order_counts', in_blocks)
  if not (counts and held and open) then
    return false
  end
  for _, command in pairs({ put_counts, drop_counts, put_held, drop_held, put_open, drop_open }) do
    more[#more + 1] = command or nil
  end
  for request, number in pairs(held) do
    if number == 0 then
      local key = tag .. ':request:' .. request
      if #(try('GET', key) or ' ') % ID_LENGTH ~= 0 then
        return false
      end
      changes.removals[#changes.removals + 1] = { 'UNLINK', key, of = 'UNLINK request' }
    end
  end
  for field, number in pairs(open) do
    if number == 0 then
      if not has_kind(tag .. ':order_unfinished', 'zset') then
        return false
      end
      more[#more + 1] = { 'ZREM', tag .. ':order_unfinished', sub(field, 6) }
    end
  end
  return true
end

-- Whether the user may run these commands. Checks one key of each kind: `of` names the kind of a key that has several.
local function may_run_all(lists)
  local checks, seen = {}, {}
  for _, commands in ipairs(lists) do
    for _, command in ipairs(commands) do
      local what = command.of or command[1] .. command[2]
      if not seen[what] then
        seen[what] = true
        checks[#checks + 1] = command[1]
        checks[#checks + 1] = command[2]
      end
    end
  end
  return may_run(checks)
end

local function hot()
  if ARGV[1] ~= '' then
    return nil
  end
  local settlements, types = tonumber(ARGV[3]), tonumber(ARGV[4])
  local rippling = tag .. ':rippling'
  -- A request that has been seen before gets the same jobs again.
  if try('EXISTS', rippling, types > 0 and tag .. ':request:' .. ARGV[5] or rippling) ~= 0 then
    return nil
  end
  local now, changes, acquired = read_clock(), new_changes(), {}
  local settled = settlements > 0 and settle_plain(changes, now, FIRST_TYPE + 3 * types, settlements) or {}
  if #settled == settlements and types > 0 then
    acquired = acquire_plain(changes, now, types)
  end
  if #settled < settlements or not acquired then
    return nil
  elseif not settled[1] and not acquired[1] then
    return { now, settled, acquired }
  end
  for leaves_at, members in pairs(changes.leaving) do
    changes.additions[#changes.additions + 1] = { 'ZADD', tag .. ':leaving', leaves_at, table.concat(members) }
  end
  local rows, apart = changes.rows, changes.apart
  for _, word in ipairs(apart) do
    rows[#rows + 1] = word
  end
  if not add_running(changes) or not add_counted(changes) or (settled[1] and not has_kind(tag .. ':leaving', 'zset'))
    or not may_set(rows[2], apart[1] or rows[2]) or not may_run_all({ changes.removals, changes.additions })
  then
    return nil
  end

  -- Removals come first: a server without free memory refuses a script's first write, but no later one.
  for _, command in ipairs(changes.removals) do
    call(unpack(command))
  end
  call(unpack(rows))
  for _, command in ipairs(changes.additions) do
    call(unpack(command))
  end
  return { now, settled, acquired }
end

