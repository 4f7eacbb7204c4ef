-- Ends a job without a worker, in one or more steps.

local function close_from_outside(row, closed_as, retention)
  finish(row, closed_as, row.status == 'running' and 'displaced' or nil, nil, retention)
  return row
end

local STEPS = {
  continue = function(row, step, created)
    if row.cancel then
      return close_from_outside(row, 'cancelled')
    end
    local applied, refused = continue_chain(row, step, row.status == 'running' and 'displaced' or nil, nil)
    if not applied then
      return nil, refused
    end
    created[#created + 1] = applied.created
    return job(applied.next.job)
  end,
  complete = function(row, step, created)
    local carried, refused = create_carried(step.create, {}, row.cancel and row.chain)
    if not carried then
      return nil, refused
    end
    created[#created + 1] = carried
    set_output(row, ARGV[step.output])
    row.error = nil
    return close_from_outside(row, 'completed', step.retention)
  end,
  fail = function(row, step)
    row.error = step.error
    return close_from_outside(row, 'failed', step.retention)
  end,
}

-- Applies the steps. Returns nil and the reason if one is refused.
local function apply_steps(row)
  local displaced, created = row.status == 'running' and row.worker or nil, {}
  for _, step in ipairs(request.steps) do
    change(row)
    row.outside = request.request
    local stopping = row.cancel
    local reached, refused = STEPS[step.outcome](row, step, created)
    if not reached then
      return nil, refused
    end
    row = reached
    if stopping then
      break
    end
  end
  return { latest = row, displaced = displaced, created = created }
end

local row = job(request.job)
local reply
if not row then
  reply = 'not_found'
elseif row.outside == request.request then
  reply = 'already_applied'
elseif not OPEN[row.status] or row.version ~= request.version then
  reply = { changed = { status = row.status, version = row.version } }
elseif request.invalid then
  reply = { refused = { why = 'invalid' } }
else
  mark()
  local applied, refused = apply_steps(row)
  if not applied then
    undo()
    reply = { refused = refused }
  else
    keep()
    ripple()
    applied.latest = summary(applied.latest)
    applied.ripple = take_report()
    reply = { applied = applied }
    commit()
  end
end
return cmsgpack.pack({ reply = reply })
