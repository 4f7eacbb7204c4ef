-- Lists chains in order of creation.

local types, statuses = wanted(request.types), wanted(request.statuses)
local unfinished = statuses and not statuses.completed

local function show(id)
  local of = must(chain(id), 'chain ' .. id)
  if passes(types, of.chain_type) and created_within(of) and passes(statuses, latest(of).status)
    and not (request.top_level and read('EXISTS', dependents(id).key) == 1)
  then
    local shown = view_chain(of)
    return shown, size_of(of) + (of.latest ~= of.id and size_of(latest(of)) or 0)
  end
end

local all = unfinished and function(last)
  return { source(tag .. ':chains', request.page.newest, last) }
end
local found, next_page = page_of(request.page, sources(request.page, { ':chains' }, unfinished), show, all)
return cmsgpack.pack({ rows = found, next = next_page })
