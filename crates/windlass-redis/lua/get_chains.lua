-- Returns chains by id, by one of their jobs, or by key.

local replies = {}
for at, target in ipairs(request.chains) do
  local found = find(target)
  replies[at] = { found = found and view_chain(found) or nil }
end
return cmsgpack.pack({ chains = replies })
