-- Returns which of these commands the user may not run on a key or channel of the namespace, including commands that
-- the server does not have.

-- Whether the user may run a command. Redis 8.6 refuses the question if the number of arguments is wrong, so
-- other numbers are tried. No argument is the last attempt: with a key or channel, the question includes that as well.
local function is_allowed(command)
  local name = KEYS[1] .. ':hint:'
  for _, arguments in ipairs({ { name }, { name, '' }, { name, '', '' }, {} }) do
    local answered, allowed = pcall(redis.acl_check_cmd, command, unpack(arguments))
    if answered then
      return allowed
    end
  end
  return false
end

local missing = {}
for command in string.gmatch(ARGV[1], '%u+') do
  if redis.acl_check_cmd and not is_allowed(command) then
    missing[#missing + 1] = command
  end
end
return missing
