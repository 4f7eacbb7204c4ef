-- Lists jobs in order of creation.

local types, chain_types, statuses = wanted(request.types), wanted(request.chain_types), wanted(request.statuses)
local unfinished = statuses and not statuses.completed
local KINDS_OF_JOBS = { ':chains', ':later' }

local function show(id)
  local row = must(job(id), 'job ' .. id)
  if passes(types, row.type) and passes(chain_types, row.chain_type) and passes(statuses, row.status)
    and created_within(row)
  then
    local shown = view(row)
    return shown, size_of(row)
  end
end

-- The jobs of one chain, numbered by their index.
local function jobs_of(of)
  local page = request.page
  local first_job = source('', page.newest, nil)
  local beyond = page.after and (page.newest and page.after <= 0 or not page.newest and page.after >= 0)
  first_job.rows, first_job.all_read = beyond and {} or { { id = of.id, number = 0 } }, true
  return { first_job, source(later_jobs(of.id).key, page.newest, page.after) }
end

local from, all
if request.chain then
  local of = chain(request.chain)
  from = of and jobs_of(of) or {}
else
  from = sources(request.page, KINDS_OF_JOBS, unfinished)
  all = unfinished and function(last)
    return sources({ newest = request.page.newest, after = last }, KINDS_OF_JOBS)
  end
end
local found, next_page = page_of(request.page, from, show, all)
return cmsgpack.pack({ rows = found, next = next_page })
