-- Pages of lists: rows of one or two sorted sets, merged by score. The score is a sequence number common to both.

-- Limits of a page: rows to scan, and bytes of input and output to return, but at least one row.
local SCAN_MAX = 2000
local BYTES_MAX = 16 * 1024 * 1024
local ROWS_CHUNK = 100

-- Returns the rows of a sorted set after a number, in the requested order.
local function source(key, newest, behind)
  return { key = key, newest = newest, behind = behind, rows = {}, at = 1 }
end

-- The next row of a source, `{ number, id }`, or nil.
local function head(of)
  if not of.rows[of.at] and not of.all_read then
    local from = of.behind and '(' .. string.format('%.0f', of.behind) or (of.newest and '+inf' or '-inf')
    local reply = of.newest
      and read('ZREVRANGEBYSCORE', of.key, from, '-inf', 'WITHSCORES', 'LIMIT', 0, ROWS_CHUNK)
      or read('ZRANGEBYSCORE', of.key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, ROWS_CHUNK)
    of.rows, of.at, of.all_read = {}, 1, #reply < 2 * ROWS_CHUNK
    for at = 1, #reply, 2 do
      of.rows[#of.rows + 1] = { id = reply[at], number = tonumber(reply[at + 1]) }
      of.behind = tonumber(reply[at + 1])
    end
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

-- Returns the sets to scan: if no completed rows are requested, those without completed rows.
local function sources(page, kinds, unfinished)
  local list = {}
  for at, kind in ipairs(kinds) do
    list[at] = source(tag .. kind .. (unfinished and '_unfinished' or ''), page.newest, page.after)
  end
  return list
end

-- Returns the first rows for which `show` returns a value, and the number to continue after. Checks `all` for more
-- rows, if it has more rows than the sources.
local function page_of(page, from, show, all)
  local found, last, scanned, bytes = {}, nil, 0, 0
  while #found < page.max and scanned < SCAN_MAX and bytes < BYTES_MAX do
    local of, entry = next_source(from)
    if not of then
      return found, nil
    end
    of.at, last, scanned = of.at + 1, entry.number, scanned + 1
    local shown, size = show(entry.id)
    if shown then
      found[#found + 1] = shown
      bytes = bytes + size
    end
  end
  local rest = from
  if all then
    rest = all(last)
  end
  return found, next_source(rest) and last or nil
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

local function created_within(row)
  return (not request.created_from or row.created >= request.created_from)
    and (not request.created_to or row.created <= request.created_to)
end

local function size_of(row)
  return #row.input + #(row.output or '')
end

