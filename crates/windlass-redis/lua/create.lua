-- Starts chains, each with its first job.

local replies, aliases = {}, {}
for at, new in ipairs(request.chains) do
  replies[at] = create_chain(new, aliases)
end
commit()
return cmsgpack.pack({ chains = replies })
