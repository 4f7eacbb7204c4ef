-- Publishes hints. Arguments per hint: channel, message, and the increase of the channel's wake budget, or an empty text if
-- it has none.

local BUDGET_TTL = 60000

local tag = KEYS[1]
for at = 1, #ARGV, 3 do
  local channel, message, grows_by = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if grows_by ~= '' then
    local budget = tag .. ':wake:' .. channel
    redis.call('INCRBY', budget, grows_by)
    redis.call('PEXPIRE', budget, BUDGET_TTL)
  end
  redis.call('SPUBLISH', tag .. ':hint:' .. channel, message)
end
return 0
