flat_request = function()
  local request = flat_acquire()
  request.now = tonumber(ARGV[2])
  return request
end

