-- Numbers in hashes, and the order of creation.

-- Length of a member: 16 digits and an id.
local MEMBER_LENGTH, ID_LENGTH = 52, 36

-- Stages changes of the numbers in a hash. Returns the new number of each field.
local function stage_numbers(key, changes)
  local fields, values = {}, {}
  for field, by in pairs(changes) do
    if by ~= 0 then
      fields[#fields + 1] = field
    end
  end
  if not fields[1] then
    return values
  end
  local stored = read('HMGET', key, unpack(fields))
  local put_fields, drop_fields = { 'HSET', key }, { 'HDEL', key }
  for at, field in ipairs(fields) do
    local value = stored_number(key, stored[at]) + changes[field]
    values[field] = value
    if value == 0 then
      drop_fields[#drop_fields + 1] = field
    else
      put_fields[#put_fields + 1] = field
      put_fields[#put_fields + 1] = value
    end
  end
  if put_fields[3] then journal[#journal + 1] = put_fields end
  if drop_fields[3] then journal[#journal + 1] = drop_fields end
  return values
end

-- Returns the member of a row in sets ordered by creation: its zero-padded number and its id.
local function member(row)
  if not row.member then
    row.member = row.seq_text .. row.id
  end
  return row.member
end

local function id_of(entry)
  return string.sub(entry.member, 17)
end

-- The order of creation: strings of members, one for each hundred numbers (a block). A hash counts the stored and the
-- unfinished rows of each block, and sorted sets have the blocks with any. A removed row stays in its block, but its
-- number is never used again. A first job is unfinished until its chain completes, another job until it completes.
local BLOCK_DIGITS = 14
local blocks = {}

local function block(row)
  local number = string.sub(row.seq_text, 1, BLOCK_DIGITS)
  if not blocks[number] then
    blocks[number] = { added = {}, live = 0, open = 0 }
  end
  return blocks[number]
end

local function is_unfinished(row)
  return row.index == 0 and row.closed_as ~= 'completed' or row.index > 0 and row.status ~= 'completed'
end

local function enter_order(row)
  local of = block(row)
  set(of.added, member(row), true)
  set(of, 'live', of.live + 1)
  set(of, 'open', of.open + 1)
end

-- Call this when a row has finished.
local function finish_in_order(row)
  local of = block(row)
  set(of, 'open', of.open - 1)
end

local function leave_order(row)
  local of = block(row)
  set(of, 'live', of.live - 1)
  if is_unfinished(row) then
    set(of, 'open', of.open - 1)
  end
end

-- Lists a block while it has rows.
local function list_block(set_name, number, left, by)
  if left == 0 then
    remove(index(tag .. set_name), number)
  elseif left and left == by then
    add(index(tag .. set_name), 0, number)
  end
end

-- Returns the members of a block whose rows are stored.
local function stored_members(key)
  local stored, members = read('GET', key), {}
  for at = 1, #stored, MEMBER_LENGTH do
    local entry = string.sub(stored, at, at + MEMBER_LENGTH - 1)
    local id = string.sub(entry, 17)
    if rows[id] or (rows[id] == nil and read('EXISTS', name('job', id)) == 1) then
      members[#members + 1] = entry
    end
  end
  return table.concat(members)
end

-- A few rows that stay must not keep the members of many removed ones.
local SPARSE = 4

local function stage_order()
  local changes = {}
  for number, of in pairs(blocks) do
    changes['live:' .. number], changes['open:' .. number] = of.live, of.open
  end
  local left = stage_numbers(tag .. ':order_counts', changes)
  for number, of in pairs(blocks) do
    local key, added = name('order', number), {}
    for entry in pairs(of.added) do
      added[#added + 1] = entry
    end
    if left['live:' .. number] == 0 then
      stage('UNLINK', key)
    elseif added[1] then
      if read('STRLEN', key) % MEMBER_LENGTH ~= 0 then
        error({ err = 'WRONGTYPE key ' .. key .. ' is not a list of jobs' })
      end
      table.sort(added)
      stage('APPEND', key, table.concat(added))
    elseif of.live < 0 and read('STRLEN', key) >= SPARSE * left['live:' .. number] * MEMBER_LENGTH then
      stage('SET', key, stored_members(key))
    end
    list_block(':order_blocks', number, left['live:' .. number], of.live)
    list_block(':order_unfinished', number, left['open:' .. number], of.open)
  end
end

