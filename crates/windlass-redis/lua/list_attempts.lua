-- The latest attempts of a job, oldest first.

local row, replies = job(request.job), {}
if row then
  for at, packed in ipairs(read('LRANGE', name('history', row.id), 0, -1)) do
    replies[at] = cmsgpack.unpack(packed)
  end
  replies[#replies + 1] = latest_attempt(row)
end
return cmsgpack.pack({ attempts = replies })
