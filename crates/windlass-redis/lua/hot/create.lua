-- The short path of create: chains that do not exist yet, without blockers, and with keys that were never used.
--
-- Arguments: an empty string, the time or an empty string, the number of kinds; for each kind its type, priority,
-- retention and constants; for each chain its kind, schedule, id and constants (if they differ from the kind's) in one
-- string, and its input.

-- Schedules. `KEYED` is added to that of a chain with a key, which is in its constants.
local NOW, AT, AFTER, KEYED = 0, 1, 2, 4
local ID, CONSTANTS = 11, 47

flat_request = function()
  local kinds, chains, first = {}, {}, 4 + 4 * tonumber(ARGV[3])
  for at = 4, first - 4, 4 do
    kinds[#kinds + 1] = {
      type = ARGV[at], priority = tonumber(ARGV[at + 1]), keep = tonumber(ARGV[at + 2]), constants = at + 3,
    }
  end
  for at = first, #ARGV, 2 do
    local number, schedule, time = read_struct('<BBi8', ARGV[at])
    local kind, key = kinds[number], nil
    if schedule >= KEYED then
      schedule, key = schedule - KEYED, {}
      local _, _, _, text = cmsgpack.unpack(sub(ARGV[at], CONSTANTS))
      key.key = text
    end
    local new_job = {
      id = sub(ARGV[at], ID, CONSTANTS - 1), type = kind.type, priority = kind.priority, input = at + 1,
      constants = #ARGV[at] < CONSTANTS and ARGV[kind.constants] or sub(ARGV[at], CONSTANTS),
      at = schedule == AT and time or nil, after = schedule == AFTER and time or nil, blockers = {},
    }
    chains[#chains + 1] = { job = new_job, key = key, keep_completed = kind.keep }
  end
  return { now = tonumber(ARGV[2]), chains = chains }
end

-- Returns the kinds of this request, and their pending sets by key. A kind's rows have everything between the lengths of
-- the payloads and the number in common, and everything between the number and the input, unless they are due later.
local function read_kinds(now, fence, first)
  local kinds, sets = {}, {}
  for at = 4, first - 4, 4 do
    local job_type, priority = ARGV[at], ARGV[at + 1]
    local key = tag .. ':pending:' .. priority .. ':' .. job_type
    if not sets[key] then
      sets[key] = { type = job_type, listed = job_type .. '\0' .. priority, add = { 'ZADD', key } }
    end
    local kind = { set = sets[key], type = job_type, priority = tonumber(priority), count = 0 }
    kind.head = function(due, flags)
      return pack(
        HEAD, 2, flags, 0, kind.priority, 0, #job_type, 0, 0, 0, 0, fence, due, -1, -1, -1, -1
      ) .. NO_ID .. NO_ID
    end
    kind.head_now = kind.head(now, 0)
    kind.middle = pack('<i8i8', now, tonumber(ARGV[at + 2])) .. job_type
    kind.tail = kind.middle .. ARGV[at + 3]
    kinds[#kinds + 1] = kind
  end
  return kinds, sets
end

-- Returns the command that stores these keys, or nil if one has been used before.
local function take_keys(new_keys)
  local fields, put = { 'HMGET', tag .. ':keys' }, { 'HSET', tag .. ':keys' }
  for field, id in pairs(new_keys) do
    fields[#fields + 1], put[#put + 1] = field, field
    put[#put + 1] = id
  end
  for _, holder in ipairs(fields[3] and (try(unpack(fields)) or { true }) or {}) do
    if holder then
      return nil
    end
  end
  return put
end

local function hot()
  local count = (#ARGV - 3 - 4 * (tonumber(ARGV[3]) or 0)) / 2
  if ARGV[1] ~= '' or count == 0 then
    return nil
  end
  local first, ids, seen, keys = 4 + 4 * tonumber(ARGV[3]), {}, {}, { 'EXISTS' }
  for at = 1, count do
    local id = sub(ARGV[first + 2 * at - 2], ID, CONSTANTS - 1)
    if seen[id] then
      return nil
    end
    seen[id], ids[at], keys[at + 1] = true, id, tag .. ':job:' .. id
  end
  local meta = try('HMGET', tag .. ':meta', 'layout', 'seq', 'deleted_fence')
  local seq, deleted = meta and tonumber(meta[2] or 0), meta and tonumber(meta[3] or 0)
  if not seq or not deleted or (meta[1] and meta[1] ~= LAYOUT) or try(unpack(keys)) ~= 0 then
    return nil
  end

  local now = read_clock()
  local now_text = string.format('%.0f', now)
  local kinds, sets = read_kinds(now, creation_fence(now, deleted), first)
  local rows, counts, blocks, block, members, new_keys, apart, sizes = { 'MSET' }, {}, {}, nil, nil, {}, {}, {}
  for at = 1, count do
    local asked, id = ARGV[first + 2 * at - 2], ids[at]
    local number, schedule, time = read_struct('<BBi8', asked)
    local kind, head, due = kinds[number], nil, now_text
    local tail = #asked < CONSTANTS and kind.tail or kind.middle .. sub(asked, CONSTANTS)
    if schedule == NOW then
      head = kind.head_now
    else
      local flags, due_time = 0, now
      if schedule >= KEYED then
        local _, _, _, text = cmsgpack.unpack(sub(asked, CONSTANTS))
        local field = #kind.type .. ':' .. kind.type .. text
        if new_keys[field] then
          return nil
        end
        new_keys[field], schedule, flags = id, schedule - KEYED, HELD
      end
      if schedule ~= NOW then
        due_time = schedule == AT and math.max(time, now) or math.min(now + time, TIME_MAX)
        due = due_time
      end
      head = kind.head(due_time, flags)
    end
    local job_seq = seq + at
    local low = job_seq % 100
    if not members or low == 0 then
      block, members = string.format('%014.0f', (job_seq - low) / 100), {}
      blocks[#blocks + 1] = { number = block, members = members }
    end
    local seq_text = block .. string.char(48 + (low - low % 10) / 10, 48 + low % 10)
    local member, add, input = seq_text .. id, kind.set.add, ARGV[first + 2 * at - 1]
    if #input > INLINE_MAX then
      apart[#apart + 1] = tag .. ':input:' .. id
      apart[#apart + 1] = input
      input = ''
    end
    local size = sizes[#input]
    if not size then
      size = pack(SIZES, #input, 0)
      sizes[#input] = size
    end
    members[#members + 1] = member
    rows[2 * at], rows[2 * at + 1] = keys[at + 1], size .. head .. seq_text .. tail .. input
    add[#add + 1] = due
    add[#add + 1] = member
    kind.count = kind.count + 1
  end
  for _, kind in ipairs(kinds) do
    local field = 'pending:' .. kind.type
    counts[field] = (counts[field] or 0) + kind.count
  end

  local set_key, in_blocks, list = nil, {}, { 'ZADD', tag .. ':pending_sets' }
  local checks = { 'HSET', tag .. ':meta' }
  local put_keys = take_keys(new_keys)
  if not put_keys then
    return nil
  elseif put_keys[3] then
    checks[#checks + 1], checks[#checks + 2] = 'HSET', put_keys[2]
  end
  for _, of in ipairs(blocks) do
    of.key = tag .. ':order:' .. of.number
    if (try('STRLEN', of.key) or 1) % MEMBER_LENGTH ~= 0 then
      return nil
    end
    in_blocks['live:' .. of.number], in_blocks['open:' .. of.number] = #of.members, #of.members
  end
  for key, set in pairs(sets) do
    local card = try('ZCARD', key)
    if not card then
      return nil
    elseif card == 0 and set.add[3] then
      list[#list + 1] = 0
      list[#list + 1] = set.listed
    end
    set_key = key
  end
  checks[#checks + 1], checks[#checks + 2] = 'ZADD', set_key
  local _, put_counts = add_numbers(tag .. ':counts', counts)
  local left, put_blocks = add_numbers(tag .. ':order_counts', in_blocks)
  if not put_counts or not put_blocks then
    return nil
  end
  local new_blocks, new_unfinished = { 'ZADD', tag .. ':order_blocks' }, { 'ZADD', tag .. ':order_unfinished' }
  for _, of in ipairs(blocks) do
    if left['live:' .. of.number] == #of.members then
      new_blocks[#new_blocks + 1] = 0
      new_blocks[#new_blocks + 1] = of.number
    end
    if left['open:' .. of.number] == #of.members then
      new_unfinished[#new_unfinished + 1] = 0
      new_unfinished[#new_unfinished + 1] = of.number
    end
  end
  for _, command in ipairs({ put_counts, put_blocks, { 'APPEND', blocks[1].key } }) do
    checks[#checks + 1] = command[1]
    checks[#checks + 1] = command[2]
  end
  -- Most calls add no set and no block. Check only what this one writes.
  local rare = { list, new_blocks, new_unfinished }
  for _, command in ipairs(rare) do
    if command[3] then
      if not has_kind(command[2], 'zset') then
        return nil
      end
      checks[#checks + 1] = command[1]
      checks[#checks + 1] = command[2]
    end
  end
  for _, word in ipairs(apart) do
    rows[#rows + 1] = word
  end
  if not may_set(rows[2], apart[1] or rows[2]) or not may_run(checks) then
    return nil
  end

  call('HSET', tag .. ':meta', 'layout', LAYOUT, 'seq', seq + count)
  call(unpack(rows))
  for _, set in pairs(sets) do
    if set.add[3] then
      call(unpack(set.add))
    end
  end
  if put_keys[3] then
    call(unpack(put_keys))
  end
  call(unpack(put_counts))
  call(unpack(put_blocks))
  for _, of in ipairs(blocks) do
    call('APPEND', of.key, table.concat(of.members))
  end
  for _, command in ipairs(rare) do
    if command[3] then
      call(unpack(command))
    end
  end
  return { now }
end

