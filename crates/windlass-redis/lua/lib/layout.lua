-- The stored form of a job, and what both paths of a script share.
--
-- A row is one string: a head of fixed width (`SIZES` and `HEAD`), the ids of the worker and of the acquire request of
-- the latest attempt (zero bytes if absent), the job's number in the order of creation (16 digits), its creation time and
-- the retention of a completed chain; then, with their lengths in the head, the worker's name, the type, the error and
-- `extra`; then the client's constants; and last, with their lengths in `SIZES`, input and output. `extra` is empty in a
-- plain row: the only job of its chain, without blockers or dependents. Absent times are -1.
--
-- Input and output are in the row if they have at most `INLINE_MAX` bytes, codec included. Larger ones have their own
-- keys, and the length 0 in the row: no payload is empty, because it begins with its codec.
--
-- Some scripts have two paths. The short path (`hot`) handles plain rows without the library, whose functions are
-- created at each call and cost more than the work for a few jobs. It decides before its first write whether
-- everything is plain, and returns nil if not. Then the library (`full`) starts from the beginning.

local tag = KEYS[1]

-- The version of the layout. A store refuses a namespace with another version.
local LAYOUT = '3'

-- Lengths of input and output in the row.
local SIZES = '<I2I2'
-- Status, flags, end of the latest attempt, priority, lengths of worker name, type, error and extra, attempt, version,
-- fence, and the times: due, lease expiry, start, end, end of the retention.
local HEAD = '<BBBbBBI2I4I4I4i8i8i8i8i8i8'
local EXTRA_LENGTH, WORKER, REQUEST, SEQ, CREATED, NAME = 13, 73, 109, 145, 161, 177
local NO_ID = string.rep('\0', 36)

local INLINE_MAX = 256

-- Flags of a row. `LARGE` marks an input of more than LARGE_MIN bytes: a reply with `BATCH_MAX_ITEMS` smaller ones stays
-- within the limit of a reply.
local CANCEL, BY_WORKER, HELD, LATER, LARGE, HAS_ERROR = 1, 2, 4, 8, 16, 32
local LARGE_MIN = 16 * 1024

local TIME_MAX = 253402300799999
-- How long a closed chain stays, whatever its retention.
local REPEAT_WINDOW = 600000
-- A job's fences start at its creation time, or above the largest fence of a deleted job, so that a job that is created again
-- under the same id gets other fences.
-- They are exact in Lua numbers for the next two hundred years.
local FENCES_PER_MS = 1024

-- Returns the fence of a job that is created now.
local function creation_fence(now, deleted)
  local fence = now * FENCES_PER_MS
  return deleted > fence and deleted + 1 or fence
end

-- Whether the user may run a command that writes to a key, or `EXISTS`. Redis 8.6 refuses the question if the
-- number of arguments is wrong, so empty ones follow the key.
local function is_allowed(command, key)
  local check = redis.acl_check_cmd
  if not check then
    return true
  elseif command == 'HSET' or command == 'ZADD' or command == 'LTRIM' or command == 'ZREMRANGEBYRANK' then
    return check(command, key, '', '')
  elseif command == 'UNLINK' or command == 'EXISTS' then
    return check(command, key)
  end
  return check(command, key, '')
end

-- The request in the form that the library reads, if it came as flat arguments.
local flat_request

