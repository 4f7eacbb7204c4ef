-- Lists chains in order of creation.

local types, statuses = wanted(request.types), wanted(request.statuses)

local function show(id)
  local of = must(chain(id), 'chain ' .. id)
  if passes(types, of.chain_type) and created_within(of) and closed_within(of.chain_closed)
    and (not request.key or of.key == request.key) and passes(statuses, latest(of).status)
    and not (request.top_level and read('EXISTS', dependents(id).key) == 1)
  then
    local shown = view_chain(of)
    return shown, size_of(of) + (of.latest ~= of.id and size_of(latest(of)) or 0)
  end
end

local from, all = sources(request.page, types, statuses, true)
local found, next_page = page_of(request.page, from, show, all)
return cmsgpack.pack({ rows = found, next = next_page })
