-- Requeues jobs whose lease expired.

local LEASE_EXPIRED = 'the lease expired before the attempt was settled'

-- The types to reap, each once.
local function types()
  if not request.types then
    return read('ZRANGE', tag .. ':busy', 0, -1)
  end
  local list, seen = {}, {}
  for _, job_type in ipairs(request.types) do
    if not seen[job_type] then
      seen[job_type] = true
      list[#list + 1] = job_type
    end
  end
  return list
end

-- Returns the running jobs whose lease has expired, longest expired first.
local function expired()
  local except, found = {}, {}
  for _, id in ipairs(request.except) do
    except[id] = true
  end
  for _, job_type in ipairs(types()) do
    local jobs, at, count = running(job_type), 1, 0
    local entry = stored_entry(jobs, at)
    while entry and entry.score <= now and count < request.max do
      if not except[id_of(entry)] then
        found[#found + 1] = entry
        count = count + 1
      end
      at = at + 1
      entry = stored_entry(jobs, at)
    end
  end
  table.sort(found, before)
  return found
end

local function reap_one(row)
  local reply = {
    type = row.type, chain_type = row.chain_type, attempt = row.attempt, worker = row.worker, worker_name = row.worker_name,
    lease_until = row.lease_until,
  }
  local exhausted = row.max_attempts and row.attempt >= row.max_attempts
  local closed_as = row.cancel and 'cancelled' or exhausted and 'failed' or nil
  if closed_as then
    change(row)
    row.error = LEASE_EXPIRED
    finish(row, closed_as, 'reaped', nil)
  else
    requeue(row, now, LEASE_EXPIRED, 'reaped')
  end
  reply.job = summary(row)
  return reply
end

ripple()
local replies = {}
for at, entry in ipairs(expired()) do
  if at > request.max then
    break
  end
  replies[at] = reap_one(must(job(id_of(entry)), 'job ' .. id_of(entry)))
end
ripple()
commit()
return cmsgpack.pack({ reaped = replies, ripple = take_report() })
