-- Pages of lists: rows of one or more sources, merged by number. The numbers are common to the sources of a page.

-- Limits of a page: rows to scan, members of removed rows and of later jobs to skip, and bytes of input and output to
-- return, but at least one row.
local SCAN_MAX = 2000
local SKIPPED_MAX = 10000
local BYTES_MAX = 16 * 1024 * 1024
local ROWS_CHUNK = 100
-- If at most this many rows have the requested types and statuses, they are sorted by number; otherwise the rows are
-- scanned in order.
local CANDIDATES_MAX = 4000

-- Returns a source: `fetch` returns its next rows, `{ number, id }` each, or nil at its end. A row to skip has no id.
local function source(newest, fetch)
  return { newest = newest, fetch = fetch, rows = {}, at = 1 }
end

-- The rows of a sorted set after a number, by score.
local function by_score(key, newest, behind)
  local all_read = false
  return source(newest, function()
    if all_read then
      return nil
    end
    local from = behind and '(' .. string.format('%.0f', behind) or (newest and '+inf' or '-inf')
    local reply = newest and read('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', 0, ROWS_CHUNK)
      or read('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, ROWS_CHUNK)
    local found = {}
    all_read = #reply < 2 * ROWS_CHUNK
    for at = 1, #reply, 2 do
      behind = tonumber(reply[at + 1])
      found[#found + 1] = { id = reply[at], number = behind }
    end
    return found
  end)
end

-- Whether a member comes after a number, in the order of the page.
local function is_behind(number, behind, newest)
  return not behind or (newest and number < behind) or (not newest and number > behind)
end

-- Returns the stored rows of these members. Removed rows and, for chains, later jobs are to be skipped.
local function live_rows(members, chains_only)
  local keys, found = { 'MGET' }, {}
  for at, entry in ipairs(members) do
    keys[at + 1] = name('job', string.sub(entry, 17))
  end
  for at, packed in ipairs(keys[2] and read(unpack(keys)) or {}) do
    local seq, row = string.sub(members[at], 1, 16), nil
    if packed and string.sub(packed, SEQ, CREATED - 1) == seq then
      row = adopt(string.sub(members[at], 17), packed)
    end
    local is_skipped = not row or (chains_only and row.index > 0)
    found[at] = { id = not is_skipped and row.id or nil, number = tonumber(seq) }
  end
  return found
end

-- Takes the next members of a list, in the order of the page, as live rows.
local function take_rows(members, at, chains_only)
  local chunk = {}
  for position = at, math.min(at + ROWS_CHUNK - 1, #members) do
    chunk[#chunk + 1] = members[position]
  end
  return live_rows(chunk, chains_only), at + #chunk
end

-- The rows of these members after a number.
local function by_member(members, newest, behind, chains_only)
  local wanted_members, at = {}, 1
  for _, entry in ipairs(members) do
    if is_behind(tonumber(string.sub(entry, 1, 16)), behind, newest) then
      wanted_members[#wanted_members + 1] = entry
    end
  end
  table.sort(wanted_members, newest and function(left, right) return left > right end or nil)
  return source(newest, function()
    if not wanted_members[at] then
      return nil
    end
    local found
    found, at = take_rows(wanted_members, at, chains_only)
    return found
  end)
end

-- All rows after a number, or all in blocks with unfinished ones.
local function in_order(newest, behind, chains_only, unfinished)
  local list = tag .. (unfinished and ':order_unfinished' or ':order_blocks')
  local bound = behind and '[' .. string.sub(string.format('%016.0f', behind), 1, BLOCK_DIGITS) or nil
  local of_block
  local function next_block()
    local number = newest and read('ZREVRANGEBYLEX', list, bound or '+', '-', 'LIMIT', 0, 1)[1]
      or not newest and read('ZRANGEBYLEX', list, bound or '-', '+', 'LIMIT', 0, 1)[1]
    if not number then
      return nil
    end
    bound = '(' .. number
    local stored, members = read('GET', name('order', number)) or '', {}
    for at = 1, #stored, MEMBER_LENGTH do
      members[#members + 1] = string.sub(stored, at, at + MEMBER_LENGTH - 1)
    end
    return by_member(members, newest, behind, chains_only)
  end
  return source(newest, function()
    local found = of_block and of_block.fetch()
    if not found then
      of_block = next_block()
      found = of_block and (of_block.fetch() or {})
    end
    return found
  end)
end

-- The next row of a source, or nil.
local function head(of)
  while not of.rows[of.at] do
    local found = of.fetch()
    if not found then
      return nil
    end
    of.rows, of.at = found, 1
  end
  return of.rows[of.at]
end

-- The source whose next row comes first, and that row; or nil.
local function next_source(sources)
  local found, row
  for _, candidate in ipairs(sources) do
    local entry = head(candidate)
    if entry and (not row or (entry.number > row.number) == candidate.newest) then
      found, row = candidate, entry
    end
  end
  return found, row
end

-- Whether the sources have another row, or may have one after the limit of skipped members.
local function has_more(from)
  for _ = 1, SKIPPED_MAX do
    local of, entry = next_source(from)
    if not of or entry.id then
      return of ~= nil
    end
    of.at = of.at + 1
  end
  return true
end

-- Returns the first rows for which `show` returns a value, and the number to continue after. Checks `all` for more
-- rows, if it has more rows than the sources.
local function page_of(page, from, show, all)
  local found, last, scanned, skipped, bytes = {}, nil, 0, 0, 0
  while #found < page.max and scanned < SCAN_MAX and skipped < SKIPPED_MAX and bytes < BYTES_MAX do
    local of, entry = next_source(from)
    if not of then
      return found, nil
    end
    of.at, last = of.at + 1, entry.number
    if entry.id then
      scanned = scanned + 1
      local shown, size = show(entry.id)
      if shown then
        found[#found + 1] = shown
        bytes = bytes + size
      end
    else
      skipped = skipped + 1
    end
  end
  local rest = from
  if all then
    rest = all(last)
  end
  return found, has_more(rest) and last or nil
end

-- Converts a list to a set. Returns nil for an empty list, which matches everything.
local function wanted(list)
  local names = nil
  for _, listed in ipairs(list) do
    names = names or {}
    names[listed] = true
  end
  return names
end

local function passes(names, value)
  return not names or names[value]
end

-- Returns the types with any of these statuses, and the number of such jobs; and for chains, all types.
local function counted_types(types, statuses, chains_only)
  local list, seen, total = {}, {}, 0
  local stored = read('HGETALL', tag .. ':counts')
  for at = 1, #stored, 2 do
    local colon = string.find(stored[at], ':', 1, true)
    local status, job_type = string.sub(stored[at], 1, colon - 1), string.sub(stored[at], colon + 1)
    if passes(types, job_type) and (chains_only or statuses[status]) then
      if not seen[job_type] then
        seen[job_type] = true
        list[#list + 1] = job_type
      end
      total = total + (statuses[status] and stored_number(tag .. ':counts', stored[at + 1]) or 0)
    end
  end
  return list, total
end

-- Returns the members of all rows that may have these types and statuses, none of which is `completed`; or nil if
-- there are too many. A chain with several jobs has its type, and the status of its latest job.
local function candidates(types, statuses, chains_only)
  local list, total = counted_types(types, statuses, chains_only)
  local keys, members = {}, {}
  for _, job_type in ipairs(list) do
    for _, priority in ipairs(statuses.pending and stored_priorities(job_type) or {}) do
      keys[#keys + 1] = pending_set(job_type, priority).key
    end
    for _, status in ipairs({ 'running', 'blocked', 'failed', 'cancelled' }) do
      if statuses[status] then
        keys[#keys + 1] = name(status, job_type)
      end
    end
    if chains_only then
      local key = long_chains(job_type).key
      total, keys[#keys + 1] = total + read('ZCARD', key), key
    end
  end
  if total > CANDIDATES_MAX then
    return nil
  end
  for _, key in ipairs(keys) do
    for _, entry in ipairs(read('ZRANGE', key, 0, -1)) do
      members[#members + 1] = entry
    end
  end
  return members
end

-- Returns the sources of a page of jobs or chains, and for those without completed rows, a function that returns the
-- sources of all rows after a number.
local function sources(page, types, statuses, chains_only)
  if not statuses or statuses.completed then
    return { in_order(page.newest, page.after, chains_only) }
  end
  local members = candidates(types, statuses, chains_only)
  local from = members and by_member(members, page.newest, page.after, chains_only)
    or in_order(page.newest, page.after, chains_only, true)
  return { from }, function(last)
    return { in_order(page.newest, last, chains_only) }
  end
end

local function is_within(at, from, to)
  return not (from or to) or at and (not from or at >= from) and (not to or at <= to)
end

local function created_within(row)
  return is_within(row.created, request.created_from, request.created_to)
end

local function closed_within(at)
  return is_within(at, request.closed_from, request.closed_to)
end

local function size_of(row)
  return #row.input + #(row.output or '')
end

