flat_request = function()
  return { now = tonumber(ARGV[2]), settlements = flat_settlements() }
end

