-- Returns which of these commands the user may not run on a key or channel of the namespace, including commands that
-- the server does not have.

local missing = {}
for command in string.gmatch(ARGV[1], '%u+') do
  local known, allowed = pcall(redis.acl_check_cmd, command, KEYS[1] .. ':hint:')
  if redis.acl_check_cmd and not (known and allowed) then
    missing[#missing + 1] = command
  end
end
return missing
