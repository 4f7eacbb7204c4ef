-- Takes one wake-up from the budget of a channel. Without a budget, every worker wakes.

local budget = KEYS[1] .. ':wake:' .. ARGV[1]
local left = redis.call('GET', budget)
if not left then
  return 1
elseif tonumber(left) <= 0 then
  return 0
end
redis.call('DECR', budget)
return 1
