-- Acquires due jobs and leases them to a worker.

local reply = acquire(request)
commit()
return cmsgpack.pack(reply)
