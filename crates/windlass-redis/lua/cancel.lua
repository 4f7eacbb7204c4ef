-- Cancels chains.

local function cancel_one(of)
  if of.closed_as then
    return { closed = { chain = of.id, closed_as = of.closed_as } }
  end
  local row = latest(of)
  if row.status ~= 'running' then
    finish(row, 'cancelled', nil, nil)
    return { cancelled = { chain = of.id, job = row.id } }
  elseif not request.ask then
    return { running = { chain = of.id } }
  end
  if not row.cancel then
    change(row)
    row.cancel, row.version = true, row.version + 1
  end
  return { asked = { chain = of.id, job = row.id, worker = row.worker } }
end

local replies = {}
for at, target in ipairs(request.chains) do
  local of = find(target)
  replies[at] = of and cancel_one(of) or 'not_found'
end
ripple()
commit()
return cmsgpack.pack({ chains = replies, ripple = take_report() })
