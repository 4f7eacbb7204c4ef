-- Functions that the short paths share.

local call, sub, pack, read_struct = redis.call, string.sub, struct.pack, struct.unpack

local MEMBER_LENGTH, ID_LENGTH, BLOCK_DIGITS = 52, 36, 14

local SIZES_AND_HEAD, SIZES_TO_STATUS = SIZES .. HEAD, SIZES .. 'B'

-- The store's time in milliseconds. Tests pass their own.
local function read_clock()
  local time = tonumber(ARGV[2])
  if not time then
    local parts = call('TIME')
    time = parts[1] * 1000 + math.floor(parts[2] / 1000)
  end
  return time
end

-- Reads a value, or returns nil if the server refuses, for example because of the key's type. The library then repeats
-- the read and reports the error.
local function try(...)
  local reply = redis.pcall(...)
  return not (type(reply) == 'table' and reply.err) and reply or nil
end

local function has_kind(key, kind)
  local found = call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- Whether the user may run all these commands: pairs of a command and a key.
local function may_run(commands)
  for at = 1, #commands, 2 do
    if not is_allowed(commands[at], commands[at + 1]) then
      return false
    end
  end
  return true
end

-- Whether the user may set both of these keys.
local function may_set(one, other)
  return not redis.acl_check_cmd or redis.acl_check_cmd('MSET', one, '', other, '')
end

-- Reads numbers of a hash and adds the changes to them. Returns nil if that is not possible, and otherwise the new
-- numbers by field, and the commands that write them.
local function add_numbers(key, changes)
  local fields = {}
  for field, by in pairs(changes) do
    if by ~= 0 then
      fields[#fields + 1] = field
    end
  end
  local stored = fields[1] and try('HMGET', key, unpack(fields))
  if not stored then
    return not fields[1] and {} or nil
  end
  local values, put_fields, drop_fields = {}, { 'HSET', key }, { 'HDEL', key }
  for at, field in ipairs(fields) do
    local number = tonumber(stored[at] or 0)
    local value = number and number + changes[field]
    if not value or value < 0 then
      return nil
    elseif value == 0 then
      drop_fields[#drop_fields + 1] = field
    else
      put_fields[#put_fields + 1] = field
      put_fields[#put_fields + 1] = value
    end
    values[field] = value
  end
  return values, put_fields[3] and put_fields, drop_fields[3] and drop_fields
end

