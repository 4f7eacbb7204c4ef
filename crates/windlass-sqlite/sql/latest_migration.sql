select coalesce(max(step), 0) as step from {prefix}migration
