-- Settles attempts, then acquires due jobs.

local settled = settle_all(request.settle.settlements)
local acquired = acquire(request.acquire)
commit()
return cmsgpack.pack({ settle = settled, acquire = acquired })
