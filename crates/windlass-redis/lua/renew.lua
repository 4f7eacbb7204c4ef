-- Renews leases.

local replies = {}
for at, lease in ipairs(request.leases) do
  local row, lost = held(lease.job, lease.fence)
  if row then
    change(row)
    row.lease_until = after(now, lease.lease)
    add(running(row.type), row.lease_until, member(row))
    replies[at] = { held = { ['until'] = row.lease_until, cancel = row.cancel ~= nil } }
  else
    replies[at] = { lost = lost }
  end
end
commit()
return cmsgpack.pack({ leases = replies, now = now })
