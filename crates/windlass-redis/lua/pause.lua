-- Pauses or resumes job types.

local key, replies, known = tag .. ':paused', {}, {}
local command = request.paused and 'SADD' or 'SREM'
for at, job_type in ipairs(request.types) do
  if known[job_type] == nil then
    known[job_type] = read('SISMEMBER', key, job_type) == 1
  end
  replies[at] = known[job_type]
  known[job_type] = request.paused
  if replies[at] ~= request.paused then
    stage(command, key, job_type)
  end
end
commit()
return cmsgpack.pack({ were_paused = replies })
