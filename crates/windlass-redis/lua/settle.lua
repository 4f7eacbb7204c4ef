-- Settles attempts.

local reply = settle_all(request.settlements)
commit()
return cmsgpack.pack(reply)
