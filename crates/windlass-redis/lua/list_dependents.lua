-- Lists the jobs that wait or waited for a chain.

local function show(id)
  local row = must(job(id), 'job ' .. id)
  return view(row), size_of(row)
end

local page = request.page
local found, next_page = page_of(page, { by_score(dependents(request.chain).key, page.newest, page.after) }, show)
return cmsgpack.pack({ rows = found, next = next_page })
