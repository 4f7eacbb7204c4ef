flat_request = function()
  return { now = tonumber(ARGV[2]), settle = { settlements = flat_settlements() }, acquire = flat_acquire() }
end

