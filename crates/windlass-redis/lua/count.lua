-- Counts jobs by type and status.

local by_type, names = {}, {}

local function of_type(job_type)
  local found = by_type[job_type]
  if not found then
    found = { type = job_type }
    by_type[job_type] = found
    names[#names + 1] = job_type
  end
  return found
end

local STATUSES = { 'blocked', 'pending', 'running', 'completed', 'failed', 'cancelled' }

-- Returns the status and the type that a field names.
local function parts(field)
  local colon = string.find(field, ':', 1, true)
  return string.sub(field, 1, colon - 1), string.sub(field, colon + 1)
end

local function note(field, value)
  local status, job_type = parts(field)
  of_type(job_type)[status] = stored_number(tag .. ':counts', value)
end

-- Notes jobs that no longer have the status with which they ended. A type with nothing else is left out.
local function note_former(field, value)
  local status, job_type = parts(field)
  local found = by_type[job_type]
  if found then
    found['former_' .. status] = stored_number(tag .. ':former', value)
  end
end

if request.types then
  for _, job_type in ipairs(request.types) do
    local fields = {}
    for at, status in ipairs(STATUSES) do
      fields[at] = status .. ':' .. job_type
    end
    for at, value in ipairs(read('HMGET', tag .. ':counts', unpack(fields))) do
      if value then
        note(fields[at], value)
      end
    end
    if read('SISMEMBER', tag .. ':paused', job_type) == 1 then
      of_type(job_type).paused = true
    end
    for at, value in ipairs(by_type[job_type] and read('HMGET', tag .. ':former', unpack(fields)) or {}) do
      if value then
        note_former(fields[at], value)
      end
    end
  end
else
  local stored = read('HGETALL', tag .. ':counts')
  for at = 1, #stored, 2 do
    note(stored[at], stored[at + 1])
  end
  for _, job_type in ipairs(read('SMEMBERS', tag .. ':paused')) do
    of_type(job_type).paused = true
  end
  stored = read('HGETALL', tag .. ':former')
  for at = 1, #stored, 2 do
    note_former(stored[at], stored[at + 1])
  end
end

table.sort(names)
local replies = {}
for at, job_type in ipairs(names) do
  local reply, oldest = by_type[job_type], nil
  for _, priority in ipairs(reply.pending and stored_priorities(job_type) or {}) do
    local entry = first(pending_set(job_type, priority))
    if entry and entry.score <= now then
      oldest = math.min(oldest or TIME_MAX, entry.score)
    end
  end
  reply.oldest_ready, reply.paused = oldest, reply.paused or false
  reply.expired_leases = reply.running and read('ZCOUNT', running(job_type).key, '-inf', now) or 0
  replies[at] = reply
end
return cmsgpack.pack({ types = replies })
