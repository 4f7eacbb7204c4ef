-- Entries that expire: each is a field of a hash, and its name is in a sorted set by expiry.

local CLEARED_MAX = 10

local function registry(kind)
  return { hash = tag .. ':' .. kind, ends = index(tag .. ':' .. kind .. '_ends') }
end

local function registered(in_registry, field)
  local packed = read('HGET', in_registry.hash, field)
  return packed and cmsgpack.unpack(packed) or nil
end

local function register(in_registry, field, value, ends_at)
  stage('HSET', in_registry.hash, field, cmsgpack.pack(value))
  add(in_registry.ends, ends_at, field)
end

local function unregister(in_registry, field)
  stage('HDEL', in_registry.hash, field)
  remove(in_registry.ends, field)
end

-- Removes some expired entries.
local function clear_away(in_registry)
  for _ = 1, CLEARED_MAX do
    local entry = first(in_registry.ends)
    if not entry or entry.score > now then
      return
    end
    unregister(in_registry, entry.member)
  end
end

