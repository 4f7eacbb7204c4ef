-- Makes pending jobs due now, all or none.

local function triggerable(target)
  if target.job then
    return job(target.job)
  end
  local of = find(target)
  return of and latest(of)
end

local found, obstacles, refused = {}, {}, false
for at, target in ipairs(request.jobs) do
  local row = triggerable(target)
  local obstacle = nil
  if not row then
    obstacle = 'not_found'
  elseif row.status ~= 'pending' then
    obstacle = { not_pending = row.status }
  end
  found[at], obstacles[at] = row or false, { found = obstacle }
  refused = refused or obstacle ~= nil
end
if refused then
  return cmsgpack.pack({ refused = obstacles })
end

local replies, seen = {}, {}
for at, row in ipairs(found) do
  if not seen[row.id] then
    seen[row.id] = true
    remove_from_indexes(row)
    change(row)
    row.due, row.version = now, row.version + 1
    add_to_indexes(row)
  end
  replies[at] = { job = summary(row), type = row.type, chain_type = row.chain_type }
end
commit()
return cmsgpack.pack({ triggered = replies })
