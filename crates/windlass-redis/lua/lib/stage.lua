-- Staging: a script decides everything first, in memory, and writes at its end, in `commit`.
--
-- Redis does not take back what a script wrote before an error stopped it. Here nothing is written before the last
-- decision is made, the kinds of all keys are known to be right and the user is known to be allowed all of it, so that
-- a command happens whole or not at all; and a refused item is taken back by `undo` without a trace. Later items see
-- what earlier ones staged, because all reads go through `job` (rows) and `first` (sorted sets), which know of it.

local tag = KEYS[1]
local request = cmsgpack.unpack(ARGV[1])

local TIME_MAX = 253402300799999
local CHUNK_FIRST, CHUNK_MAX = 4, 256
-- How many members one command adds or removes: a function of Lua's takes a few thousand arguments at most.
local MEMBERS_MAX = 1000

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

-- The keys that are known to be of the right kind, because they have been read.
local known_kinds = {}

-- Reads, and names the key where that fails.
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
-- What takes back the changes since the latest mark, and how many there are. Nil where nothing is to be taken back.
local log, logged, journal_mark = nil, 0, 0

-- Whether what is done now may have to be taken back.
local function taking_back()
  return log ~= nil
end

local function on_undo(take_back)
  logged = logged + 1
  log[logged] = take_back
end

-- Sets a field of a table that stands for something stored.
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

-- From here on everything can be taken back.
local function mark()
  log, logged, journal_mark = {}, 0, #journal
end

-- Takes back everything since the mark, which is gone then.
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

-- Everything since the mark stays.
local function keep()
  log = nil
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

local function remove(from, member)
  local score = from.staged[member]
  if score then
    set(from.staged, member, nil)
    if from.sorted then
      table.remove(from.sorted, sorted_place(from.sorted, { score = score, member = member }))
    end
  end
  set(from.gone, member, true)
end

-- Adds a member, or gives it another score.
local function add(to, score, member)
  remove(to, member)
  set(to.staged, member, score)
  if to.sorted then
    local entry = { score = score, member = member }
    table.insert(to.sorted, sorted_place(to.sorted, entry), entry)
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

-- What is done to sorted sets: commands that take members out, and commands that put them in.
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
  LTRIM = 'list', SET = 'string',
}

-- Stops before the first write if a key is not what it should be.
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

-- Stops before the first write if the user may not do something. Of keys of one kind the first stands for all.
local function check_permission(command, key)
  local what = command .. string.match(key, '^:[a-z_]+', #tag + 1)
  if not allowed[what] and redis.acl_check_cmd and not redis.acl_check_cmd(command, key) then
    error({ err = 'NOPERM this user may not use ' .. command .. ' on key ' .. key })
  end
  allowed[what] = true
end

local function check(commands)
  for _, command in ipairs(commands) do
    local last_key = command[1] == 'UNLINK' and #command or 2
    for at = 2, last_key do
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

-- Writes everything that was staged. `row_commands` are the commands for changed rows.
local function write_all(row_commands)
  local frees, rest = {}, {}
  for _, command in ipairs(journal) do
    local list = command[1] == 'UNLINK' and frees or rest
    list[#list + 1] = command
  end
  local removals, additions = index_commands()
  -- What frees memory goes first: a server that is out of it refuses a script's first write, but none after that. What
  -- is unlinked is not written again.
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

