-- Removes some keys of the namespace: one step of a scan over all keys of the server.

local reply = redis.call('SCAN', request.cursor, 'MATCH', tag .. ':*', 'COUNT', request.step)
for _, key in ipairs(reply[2]) do
  redis.call('UNLINK', key)
end
return cmsgpack.pack({ cursor = reply[1] })
