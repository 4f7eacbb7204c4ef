-- Acquires, renews or releases a lock.

local locks = registry('locks')
clear_away(locks)
local held_lock = registered(locks, request.name)
if held_lock and held_lock['until'] <= now then
  held_lock = nil
end

local state = 'free'
if held_lock and held_lock.token ~= request.token then
  state = { held_by_another = held_lock['until'] }
elseif request.hold then
  local ends_at = after(now, request.hold)
  register(locks, request.name, { token = request.token, ['until'] = ends_at }, ends_at)
  state = { held = ends_at }
elseif held_lock then
  unregister(locks, request.name)
end
commit()
return cmsgpack.pack({ state = state })
