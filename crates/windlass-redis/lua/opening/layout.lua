-- Returns the layout of the stored data if it differs from that of the scripts, and nothing otherwise.

-- The first layout had no version. It had a counter under its own key.
if redis.call('TYPE', tag .. ':seq').ok == 'string' then
  return { '1' }
end
local found = redis.call('TYPE', tag .. ':meta').ok == 'hash' and redis.call('HGET', tag .. ':meta', 'layout')
return { found and found ~= LAYOUT and found or nil }
