-- Staging: a script makes all decisions in memory first and writes at the end, in `commit`.
--
-- Redis does not roll back the writes of a script that an error stopped. So nothing is written before all decisions
-- are made, all keys are known to have the right type, and the user is known to have all permissions. A command
-- therefore takes effect completely or not at all, and `undo` reverts a refused item. Later items see staged changes
-- of earlier ones, because all reads go through `job` (rows) and `first` (sorted sets).

local request = flat_request and ARGV[1] == '' and flat_request() or cmsgpack.unpack(ARGV[1])

local CHUNK_FIRST, CHUNK_MAX = 4, 256
-- Maximum number of members per command: a Lua function takes only a few thousand arguments.
local MEMBERS_MAX = 1000

-- The store's time in milliseconds. Tests pass their own.
local now = request.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Adds a duration to a time, capped at the end of the year 9999.
local function after(time, span)
  return math.min(time + span, TIME_MAX)
end

-- Returns the name of a key. User-chosen text is only at its end, where it cannot be misinterpreted.
local function name(kind, rest)
  return tag .. ':' .. kind .. ':' .. rest
end

-- The keys that are known to have the right type, because they have been read.
local known_kinds = {}

-- Reads a value. An error names the key.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    error({ err = reply.err .. ' (key ' .. key .. ')' })
  end
  known_kinds[key] = true
  return reply
end

-- Commands to send at the end.
local journal = {}
-- Sorted sets by key.
local indexes = {}
-- Functions that undo the changes since the latest mark, and their number. Nil if no undo is possible.
local log, logged, journal_mark = nil, 0, 0

-- Whether changes may have to be undone.
local function taking_back()
  return log ~= nil
end

local function on_undo(take_back)
  logged = logged + 1
  log[logged] = take_back
end

-- Sets a field of a table that represents stored data.
local function set(object, field, value)
  if log then
    local former = object[field]
    on_undo(function() object[field] = former end)
  end
  object[field] = value
end

local function stage(...)
  journal[#journal + 1] = { ... }
end

-- Sets a mark. Later changes can be undone.
local function mark()
  log, logged, journal_mark = {}, 0, #journal
end

-- Undoes everything since the mark, and removes the mark.
local function undo()
  for at = logged, 1, -1 do
    log[at]()
  end
  for at = #journal, journal_mark + 1, -1 do
    journal[at] = nil
  end
  for _, of in pairs(indexes) do
    of.sorted, of.at = nil, 1
  end
  log = nil
end

-- Keeps everything since the mark, and removes the mark.
local function keep()
  log = nil
end

-- A sorted set as it will be: `stored` has the entries read so far, in order, of which those in `gone` are removed;
-- `staged` has the entries to add. The name of a listed index is in another sorted set while it has members.
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

local function sorted_position(list, entry)
  local low, high = 1, #list + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(list[middle], entry) then low = middle + 1 else high = middle end
  end
  return low
end

local function remove(from, member)
  local score = from.staged[member]
  if score then
    set(from.staged, member, nil)
    if from.sorted then
      table.remove(from.sorted, sorted_position(from.sorted, { score = score, member = member }))
    end
  end
  set(from.gone, member, true)
end

-- Adds a member or changes its score.
local function add(to, score, member)
  remove(to, member)
  set(to.staged, member, score)
  if to.sorted then
    local entry = { score = score, member = member }
    table.insert(to.sorted, sorted_position(to.sorted, entry), entry)
  end
end

-- Returns the stored entry at this position, which may be removed by now.
local function stored_entry(of, at)
  while not of.stored[at] and not of.all_read do
    -- Most scripts need few entries. Double the number each time more are needed.
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

-- Returns the commands that remove members from sorted sets, and those that add members.
local function index_commands()
  local removals, additions = {}, {}
  for key, of in pairs(indexes) do
    local drop, put = { 'ZREM', key }, { 'ZADD', key }
    for member in pairs(of.gone) do
      local score = of.staged[member]
      if not score then
        drop[#drop + 1] = member
      else
        put[#put + 1] = score
        put[#put + 1] = member
      end
      if #drop > MEMBERS_MAX then
        removals[#removals + 1], drop = drop, { 'ZREM', key }
      elseif #put > MEMBERS_MAX then
        additions[#additions + 1], put = put, { 'ZADD', key }
      end
    end
    if drop[3] then removals[#removals + 1] = drop end
    if put[3] then additions[#additions + 1] = put end
    if of.listed_in and next(of.staged) then
      additions[#additions + 1] = { 'ZADD', of.listed_in, 0, of.listed_as }
    end
    of.shrinks = of.listed_in and next(of.gone) ~= nil
  end
  return removals, additions
end

local KINDS = {
  ZADD = 'zset', ZREM = 'zset', HSET = 'hash', HDEL = 'hash', SADD = 'set', SREM = 'set', RPUSH = 'list',
  LTRIM = 'list', SET = 'string', APPEND = 'string',
}

-- Raises an error before the first write if a key has the wrong type.
local function check_kind(command, key)
  local expected = KINDS[command]
  if expected and not known_kinds[key] then
    local kind = redis.call('TYPE', key).ok
    if kind ~= expected and kind ~= 'none' then
      error({ err = 'WRONGTYPE key ' .. key .. ' is a ' .. kind .. ' and should be a ' .. expected })
    end
    known_kinds[key] = true
  end
end

local allowed = {}

-- Raises an error before the first write if the user lacks a permission. Checks one key of each type.
local function check_permission(command, key)
  local what = command .. string.match(key, '^:[a-z_]+', #tag + 1)
  if not allowed[what] and not is_allowed(command, key) then
    error({ err = 'NOPERM this user may not use ' .. command .. ' on key ' .. key })
  end
  allowed[what] = true
end

local function check(commands)
  for _, command in ipairs(commands) do
    local last_key = (command[1] == 'UNLINK' or command[1] == 'MSET') and #command or 2
    for at = 2, last_key, command[1] == 'MSET' and 2 or 1 do
      check_kind(command[1], command[at])
      check_permission(command[1], command[at])
    end
  end
end

local function run(commands)
  for _, command in ipairs(commands) do
    redis.call(unpack(command))
  end
end

-- Writes all staged changes. `row_commands` are the commands for changed rows.
local function write_all(row_commands)
  local frees, rest = {}, {}
  for _, command in ipairs(journal) do
    local list = command[1] == 'UNLINK' and frees or rest
    list[#list + 1] = command
  end
  local removals, additions = index_commands()
  -- Commands that free memory come first: a server without free memory refuses a script's first write, but no later
  -- one. Unlinked keys are not written again.
  local groups = { frees, removals, row_commands, rest, additions }
  for _, commands in ipairs(groups) do
    check(commands)
  end
  for key, of in pairs(indexes) do
    if of.shrinks then
      check_kind('ZREM', of.listed_in)
      check_permission('EXISTS', key)
      check_permission('ZREM', of.listed_in)
    end
  end
  for _, commands in ipairs(groups) do
    run(commands)
  end
  for key, of in pairs(indexes) do
    if of.shrinks and redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', of.listed_in, of.listed_as)
    end
  end
end

