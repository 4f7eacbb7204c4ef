-- Staging: a script decides everything first, in memory, and writes at its end, in `commit`.
--
-- Redis does not take back what a script wrote before an error stopped it. Here nothing is written before the last
-- decision is made, the kinds of all keys are known to be right and the user is known to be allowed all of it, so that a command happens whole or not at all;
-- and a refused item is taken back by `undo` without a trace. Later items see what earlier ones staged, because
-- all reads go through `job` (rows) and `first` (sorted sets), which know of it.

local tag = KEYS[1]
local request = cmsgpack.unpack(ARGV[1])

local TIME_MAX = 253402300799999
local CHUNK_FIRST, CHUNK_MAX = 4, 256

-- The store's time in milliseconds. Tests give their own.
local now = request.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The time so long after another; the end of the year 9999 is as late as it gets.
local function after(time, span)
  return math.min(time + span, TIME_MAX)
end

-- The name of a key. A text of a user's stands at its end only, where it cannot be taken for anything else.
local function name(kind, rest)
  return tag .. ':' .. kind .. ':' .. rest
end

-- Reads, and names the key where that fails.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    error({ err = reply.err .. ' (key ' .. key .. ')' })
  end
  return reply
end

-- Every change of a table that stands for something stored: the table, the field and its former value.
local changes = {}
-- Commands to send at the end.
local journal = {}
-- Sorted sets by key.
local indexes = {}

local function set(object, field, value)
  changes[#changes + 1] = { object, field, object[field] }
  object[field] = value
end

local function stage(...)
  journal[#journal + 1] = { ... }
end

local function mark()
  return { changes = #changes, journal = #journal }
end

-- Takes back everything since the mark.
local function undo(to)
  for at = #changes, to.changes + 1, -1 do
    local change = changes[at]
    change[1][change[2]] = change[3]
    changes[at] = nil
  end
  for at = #journal, to.journal + 1, -1 do
    journal[at] = nil
  end
  for _, index in pairs(indexes) do
    index.sorted, index.at = nil, 1
  end
end

-- A sorted set as it will be: `stored` is what was read of it so far, in order, of which `gone` no longer counts;
-- `staged` is what will be added. An index that is listed has its name in another sorted set while it has members.
local function index(key, listed_in, listed_as)
  local found = indexes[key]
  if not found then
    found = { key = key, listed_in = listed_in, listed_as = listed_as, stored = {}, at = 1, gone = {}, staged = {} }
    indexes[key] = found
  end
  return found
end

local function before(left, right)
  if left.score ~= right.score then
    return left.score < right.score
  end
  return left.member < right.member
end

local function sorted_place(list, entry)
  local low, high = 1, #list + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(list[middle], entry) then low = middle + 1 else high = middle end
  end
  return low
end

-- Adds a member, or gives it another score.
local function add(to, score, member)
  if to.listed_in and not to.listed then
    stage('ZADD', to.listed_in, 0, to.listed_as)
    set(to, 'listed', true)
  end
  stage('ZADD', to.key, score, member)
  set(to.gone, member, true)
  set(to.staged, member, score)
  if to.sorted then
    local entry = { score = score, member = member }
    table.insert(to.sorted, sorted_place(to.sorted, entry), entry)
  end
end

local function remove(from, member)
  stage('ZREM', from.key, member)
  set(from, 'shrunk', true)
  set(from.gone, member, true)
  local score = from.staged[member]
  if score then
    set(from.staged, member, nil)
    if from.sorted then
      table.remove(from.sorted, sorted_place(from.sorted, { score = score, member = member }))
    end
  end
end

-- The entry that is stored at this place in the order of the set; it may be gone by now.
local function stored_entry(of, at)
  while not of.stored[at] and not of.all_read do
    -- Most scripts need few entries. Who needs many reads twice as many each time.
    local count = #of.stored
    local chunk = math.min(math.max(count, CHUNK_FIRST), CHUNK_MAX)
    local rows = read('ZRANGE', of.key, count, count + chunk - 1, 'WITHSCORES')
    for row = 1, #rows, 2 do
      of.stored[#of.stored + 1] = { member = rows[row], score = tonumber(rows[row + 1]) }
    end
    of.all_read = #rows < 2 * chunk
  end
  return of.stored[at]
end

-- The first entry, `{ score, member }`, or nil.
local function first(of)
  local stored = stored_entry(of, of.at)
  while stored and of.gone[stored.member] do
    of.at = of.at + 1
    stored = stored_entry(of, of.at)
  end
  if not of.sorted then
    of.sorted = {}
    for member, score in pairs(of.staged) do
      of.sorted[#of.sorted + 1] = { score = score, member = member }
    end
    table.sort(of.sorted, before)
  end
  local staged = of.sorted[1]
  if stored and staged then
    return before(stored, staged) and stored or staged
  end
  return stored or staged
end

local KINDS = {
  ZADD = 'zset', ZREM = 'zset', SADD = 'set', SREM = 'set', HSET = 'hash', HDEL = 'hash',
  RPUSH = 'list', LTRIM = 'list', SET = 'string',
}

-- Stops before the first write if a key is not what it should be.
local function check_kinds()
  local checked = {}
  local function check(key, expected)
    if not checked[key] then
      local kind = redis.call('TYPE', key).ok
      if kind ~= expected and kind ~= 'none' then
        error({ err = 'WRONGTYPE key ' .. key .. ' is a ' .. kind .. ' and should be a ' .. expected })
      end
      checked[key] = true
    end
  end
  for _, command in ipairs(journal) do
    if KINDS[command[1]] then
      check(command[2], KINDS[command[1]])
    end
  end
  for _, found in pairs(indexes) do
    if found.listed_in then
      check(found.listed_in, 'zset')
    end
  end
end

-- Stops before the first write if the user may not do all that is to be done.
local function check_permissions(row_commands)
  if not redis.acl_check_cmd then
    return
  end
  local checked = {}
  local function check(command, key)
    local allowed = checked[command] or {}
    checked[command] = allowed
    if not allowed[key] then
      if not redis.acl_check_cmd(command, key) then
        error({ err = 'NOPERM this user may not use ' .. command .. ' on key ' .. key })
      end
      allowed[key] = true
    end
  end
  for _, commands in ipairs({ row_commands, journal }) do
    for _, command in ipairs(commands) do
      local last_key = command[1] == 'UNLINK' and #command or 2
      for at = 2, last_key do
        check(command[1], command[at])
      end
    end
  end
  for key, found in pairs(indexes) do
    if found.listed_in and found.shrunk then
      check('EXISTS', key)
      check('ZREM', found.listed_in)
    end
  end
end

-- Writes everything that was staged. `row_commands` are the commands for changed rows.
local function write_all(row_commands)
  check_kinds()
  check_permissions(row_commands)
  -- What frees memory goes first: a server that is out of it refuses a script's first write, but none after that. What
  -- is unlinked is not written again.
  for _, command in ipairs(journal) do
    if command[1] == 'UNLINK' then
      redis.call(unpack(command))
    end
  end
  for _, command in ipairs(row_commands) do
    redis.call(unpack(command))
  end
  for _, command in ipairs(journal) do
    if command[1] ~= 'UNLINK' then
      redis.call(unpack(command))
    end
  end
  for key, found in pairs(indexes) do
    if found.listed_in and found.shrunk and redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', found.listed_in, found.listed_as)
    end
  end
end

