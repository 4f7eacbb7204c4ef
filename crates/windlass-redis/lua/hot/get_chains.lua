-- The short path of get_chains: plain chains by id.
--
-- Arguments: an empty string, the time or an empty string, and the ids. Replies with row, input and output of each chain,
-- or false instead of what is not stored.

flat_request = function()
  local chains = {}
  for at = 3, #ARGV do
    chains[at - 2] = { chain = ARGV[at] }
  end
  return { now = tonumber(ARGV[2]), chains = chains }
end

local function hot()
  if ARGV[1] ~= '' or not ARGV[3] then
    return nil
  end
  local keys, more, replies = { 'MGET' }, { 'MGET' }, {}
  for at = 3, #ARGV do
    keys[at - 1] = tag .. ':job:' .. ARGV[at]
  end
  local rows = try(unpack(keys))
  for at = 1, #ARGV - 2 do
    local row = rows and rows[at]
    if row == nil or (row and (#row < NAME or sub(row, EXTRA_LENGTH, EXTRA_LENGTH + 3) ~= '\0\0\0\0')) then
      return nil
    elseif row then
      more[#more + 1] = tag .. ':input:' .. ARGV[at + 2]
      more[#more + 1] = tag .. ':output:' .. ARGV[at + 2]
    elseif call('EXISTS', keys[at + 1]) == 1 then
      -- Not a string. The library reports it.
      return nil
    end
  end
  local found, next_found = more[2] and try(unpack(more)) or {}, 1
  for at = 1, #ARGV - 2 do
    local row = rows[at]
    replies[3 * at - 2], replies[3 * at - 1], replies[3 * at] = row, false, false
    if row then
      local input, output = found[next_found], found[next_found + 1]
      next_found = next_found + 2
      if not input then
        return nil
      end
      -- An output is written once, when its job completes.
      replies[3 * at - 1], replies[3 * at] = input, output
    end
  end
  return replies
end

