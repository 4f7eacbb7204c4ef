-- Schedules: fields of a hash by name, with a hash of names by id, a sorted set of names, and one of due times.

local schedules, schedule_ids = tag .. ':schedules', tag .. ':schedule_ids'
local schedule_names, schedule_due = index(tag .. ':schedule_names'), index(tag .. ':schedule_due')
-- The schedules that were read or changed, by name. False if one is not stored.
local known_schedules, known_ids = {}, {}

local function schedule(of_name)
  if known_schedules[of_name] == nil then
    local packed = read('HGET', schedules, of_name)
    known_schedules[of_name] = packed and cmsgpack.unpack(packed) or false
  end
  return known_schedules[of_name]
end

-- Returns the name of the schedule with this id, or false.
local function schedule_name(id)
  if known_ids[id] == nil then
    known_ids[id] = read('HGET', schedule_ids, id)
  end
  return known_ids[id]
end

local function put_schedule(of_name, row)
  known_schedules[of_name], known_ids[row.id] = row, of_name
  stage('HSET', schedules, of_name, cmsgpack.pack(row))
  stage('HSET', schedule_ids, row.id, of_name)
  add(schedule_names, 0, of_name)
  if row.due then
    add(schedule_due, row.due, of_name)
  else
    remove(schedule_due, of_name)
  end
end

local function delete_schedule(of_name, row)
  known_schedules[of_name], known_ids[row.id] = false, false
  stage('HDEL', schedules, of_name)
  stage('HDEL', schedule_ids, row.id)
  remove(schedule_names, of_name)
  remove(schedule_due, of_name)
end

-- Returns a schedule with its name, for a reply.
local function shown_schedule(of_name)
  local row = schedule(of_name)
  return row and {
    name = of_name, id = row.id, revision = row.revision, due = row.due, handled = row.handled,
    definition = row.definition, state = row.state,
  } or nil
end
