-- Creates, changes, fires or deletes schedules.

-- Returns why a change does not apply to the stored schedule, or nil.
local function obstacle(change, stored)
  if stored and stored.revision == change.revision or not stored and change.delete then
    return 'repeated'
  end
  if stored then
    if not change.expected or stored.id ~= change.id or stored.revision ~= change.expected then
      return 'conflict'
    end
  elseif change.expected or schedule_name(change.id) then
    return 'conflict'
  end
  if change.not_before and now < change.not_before then
    return 'not_due'
  end
  if change.not_after and now > change.not_after then
    return 'too_late'
  end
  if not change.delete and stored and stored.handled and (not change.handled or change.handled < stored.handled) then
    return 'conflict'
  end
end

local replies = {}
for at, change in ipairs(request.changes) do
  local stored = schedule(change.name)
  local reply = { result = obstacle(change, stored) or 'applied' }
  if reply.result == 'applied' and change.delete then
    delete_schedule(change.name, stored)
  elseif reply.result == 'applied' then
    reply.created = change.chain and create_chain(change.chain, {}) or nil
    local is_created = not reply.created or reply.created.new
    put_schedule(change.name, {
      id = change.id, revision = change.revision, due = change.due, handled = change.handled,
      definition = change.definition and ARGV[change.definition] or stored and stored.definition or '',
      state = ARGV[is_created and change.state or change.other_state],
    })
  end
  replies[at] = reply
end
commit()
return cmsgpack.pack({ now = now, changes = replies })
