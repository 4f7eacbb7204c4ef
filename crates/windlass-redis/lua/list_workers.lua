-- Lists the workers whose registration has not expired, by id.

local stored, names, by_name, replies = read('HGETALL', tag .. ':workers'), {}, {}, {}
for at = 1, #stored, 2 do
  names[#names + 1] = stored[at]
  by_name[stored[at]] = cmsgpack.unpack(stored[at + 1])
end
table.sort(names)
for _, id in ipairs(names) do
  local worker = by_name[id]
  if worker.expires > now then
    worker.worker = id
    replies[#replies + 1] = worker
  end
end
return cmsgpack.pack({ workers = replies })
