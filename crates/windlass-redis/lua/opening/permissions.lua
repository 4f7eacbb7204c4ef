-- Which of these commands the user may not use on a key, or a channel, of the namespace; those that the server does not
-- know are among them.

local missing = {}
for command in string.gmatch(ARGV[1], '%u+') do
  local known, allowed = pcall(redis.acl_check_cmd, command, KEYS[1] .. ':hint:')
  if redis.acl_check_cmd and not (known and allowed) then
    missing[#missing + 1] = command
  end
end
return missing
