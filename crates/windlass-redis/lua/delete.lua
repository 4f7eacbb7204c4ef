-- Removes chains with all their jobs, all or none.

local CHAINS_MAX = 1000
-- Maximum number of reasons that a refused delete returns.
local REASONS_MAX = 100

-- The chains to delete, each once, as a list and as a set.
local doomed, is_doomed = {}, {}

local function doom(of)
  if of and not is_doomed[of.id] then
    is_doomed[of.id] = true
    doomed[#doomed + 1] = of
  end
end

-- Adds the chains that jobs of this one wait or waited for.
local function doom_blockers(of)
  local ids = later_ids(of)
  table.insert(ids, 1, of.id)
  for _, id in ipairs(ids) do
    for _, blocker in ipairs(blockers(must(job(id), 'job ' .. id))) do
      doom(chain(blocker.chain))
    end
  end
end

-- The chains that are not as the caller has read them. `request.seen` has the latest job of each chain with its version.
local function changes()
  local versions, list = {}, {}
  for _, seen in ipairs(request.seen) do
    versions[seen.job] = versions[seen.job] or seen.version
  end
  for _, of in ipairs(doomed) do
    local row = latest(of)
    if versions[row.id] ~= row.version then
      list[#list + 1] = { why = 'changed', chain = of.id }
    end
    if #list == REASONS_MAX then
      return list
    end
  end
  return list
end

-- The open jobs outside the set that depend on a chain in it.
local function references()
  local list = {}
  for _, of in ipairs(doomed) do
    for _, id in ipairs(of.needed > 0 and read('ZRANGE', open_dependents(of.id).key, 0, -1) or {}) do
      if not is_doomed[must(job(id), 'job ' .. id).chain] then
        list[#list + 1] = { why = 'needed', chain = of.id, by = id }
      end
      if #list == REASONS_MAX then
        return list
      end
    end
  end
  return list
end

for _, target in ipairs(request.chains) do
  doom(find(target))
end
local at = 1
while request.cascade and doomed[at] do
  doom_blockers(doomed[at])
  if #doomed > CHAINS_MAX then
    return cmsgpack.pack({ refused = { { why = 'too_many_chains' } } })
  end
  at = at + 1
end
local changed = request.seen and changes() or {}
if changed[1] then
  return cmsgpack.pack({ refused = changed })
end
local found = references()
if found[1] then
  return cmsgpack.pack({ refused = found })
end

local replies = {}
for position, of in ipairs(doomed) do
  local row = latest(of)
  replies[position] = {
    chain = of.id, chain_type = of.chain_type, status = row.status,
    running = row.status == 'running' and { job = row.id, worker = row.worker } or nil,
  }
end
for _, of in ipairs(doomed) do
  remove_chain(of)
end
commit()
return cmsgpack.pack({ deleted = replies })
