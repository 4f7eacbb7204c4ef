-- Sets how long closed chains are kept, counted from now.

local function retain(of)
  if not of.closed_as then
    return 'not_closed'
  end
  change(of)
  of.retain_until = after(now, request.retention)
  if of.needed == 0 then
    add(leaving(), removable_at(of), member(of))
  end
  return { ['until'] = of.retain_until }
end

local replies = {}
for at, target in ipairs(request.chains) do
  local of = find(target)
  replies[at] = of and retain(of) or 'not_found'
end
commit()
return cmsgpack.pack({ chains = replies })
