-- Chains by id, by one of their jobs, or by the key that points at them.

local function find(target)
  if target.key then
    return found_by(target.type, target.key)
  elseif target.chain then
    return chain(target.chain)
  end
  local row = job(target.job)
  return row and chain_of(row)
end

