-- Publishes hints: for each its channel, its message, and by how many the wake budget of that channel grows.

local BUDGET_TTL = 60000

local tag = KEYS[1]
for at = 1, #ARGV, 3 do
  local channel, message, grows_by = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if grows_by ~= '0' then
    local budget = tag .. ':wake:' .. channel
    redis.call('INCRBY', budget, grows_by)
    redis.call('PEXPIRE', budget, BUDGET_TTL)
  end
  redis.call('SPUBLISH', tag .. ':hint:' .. channel, message)
end
return 0
