-- Looks chains up, by id, by one of their jobs, or by key.

local function find(target)
  if target.key then
    return found_by(target.type, target.key)
  elseif target.chain then
    return chain(target.chain)
  end
  local row = job(target.job)
  return row and chain(row.chain)
end

local function view_chain(of)
  local last = of.latest ~= of.id and latest(of) or nil
  return {
    key = of.key and { key = of.key, hold = of.hold, window = of.window, held = of.held ~= nil },
    retention = view_retention(of),
    closed = of.closed_as
      and { at = of.chain_closed, closed_as = of.closed_as, retain_until = of.retain_until },
    trace = of.chain_trace, first = view(of), latest = last and view(last),
  }
end

local replies = {}
for at, target in ipairs(request.chains) do
  local found = find(target)
  replies[at] = { found = found and view_chain(found) }
end
return cmsgpack.pack({ chains = replies })
