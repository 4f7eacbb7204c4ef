-- Registers a worker or renews its registration.

local workers = registry('workers')
local known = registered(workers, request.worker)
clear_away(workers)
-- A worker whose registration expired and was removed counts as new.
local started = known and not workers.ends.gone[request.worker] and known.started or now
local expires = after(now, request.ttl)
register(workers, request.worker, {
  name = request.name, types = request.types, concurrency = request.concurrency, running = request.running,
  started = started, seen = now, expires = expires,
}, expires)
commit()
return cmsgpack.pack({ now = now })
