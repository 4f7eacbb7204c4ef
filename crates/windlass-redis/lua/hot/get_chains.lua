-- The short path of get_chains: plain chains by id.
--
-- Arguments: an empty string, the time or an empty string, and the ids. Replies with the row of each chain, and with the
-- input and the output that have their own keys; or false instead of what is not stored.

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
  local keys, more, of, replies = { 'MGET' }, { 'MGET' }, {}, {}
  for at = 3, #ARGV do
    keys[at - 1] = tag .. ':job:' .. ARGV[at]
  end
  local rows = try(unpack(keys))
  for at = 1, #ARGV - 2 do
    local row = rows and rows[at]
    if row == nil or (row and (#row < NAME or sub(row, EXTRA_LENGTH, EXTRA_LENGTH + 3) ~= '\0\0\0\0')) then
      return nil
    elseif row then
      local input_length, output_length, status = read_struct(SIZES_TO_STATUS, row)
      if input_length == 0 then
        more[#more + 1], of[#of + 1] = tag .. ':input:' .. ARGV[at + 2], 3 * at - 1
      end
      if output_length == 0 and status == 4 then
        more[#more + 1], of[#of + 1] = tag .. ':output:' .. ARGV[at + 2], 3 * at
      end
    elseif call('EXISTS', keys[at + 1]) == 1 then
      -- Not a string. The library reports it.
      return nil
    end
    replies[3 * at - 2], replies[3 * at - 1], replies[3 * at] = row, false, false
  end
  local found = of[1] and try(unpack(more)) or {}
  for at, position in ipairs(of) do
    -- A plain job that has completed has an output.
    if not found[at] then
      return nil
    end
    replies[position] = found[at]
  end
  return replies
end

