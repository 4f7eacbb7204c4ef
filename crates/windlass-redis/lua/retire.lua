-- Removes a worker from the list.

local workers = registry('workers')
local known = registered(workers, request.worker)
if known then
  unregister(workers, request.worker)
end
commit()
return cmsgpack.pack({ was_known = known ~= nil and known.expires > now })
