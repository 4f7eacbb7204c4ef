-- Lists jobs in order of creation.

local types, chain_types, statuses = wanted(request.types), wanted(request.chain_types), wanted(request.statuses)

local function show(id)
  local row = must(job(id), 'job ' .. id)
  if passes(types, row.type) and passes(chain_types, row.chain_type) and passes(statuses, row.status)
    and created_within(row) and closed_within(row.closed)
  then
    local shown = view(row)
    return shown, size_of(row)
  end
end

-- The jobs of one chain, numbered by their index.
local function jobs_of(of)
  local page, first_job = request.page, { { id = of.id, number = 0 } }
  if page.after and not is_behind(0, page.after, page.newest) then
    first_job = nil
  end
  local first_source = source(page.newest, function()
    local found = first_job
    first_job = nil
    return found
  end)
  return { first_source, by_score(later_jobs(of.id).key, page.newest, page.after) }
end

local from, all
if request.chain then
  local of = chain(request.chain)
  from = of and jobs_of(of) or {}
else
  from, all = sources(request.page, types, statuses)
end
local found, next_page = page_of(request.page, from, show, all)
return cmsgpack.pack({ rows = found, next = next_page })
