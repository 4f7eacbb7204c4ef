-- The time of a command: the database's clock at this moment, unless a test says another.
create function windlass.time_v1(given bigint) returns bigint language sql volatile as $$
  select coalesce(given, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
$$;

-- The later time; the end of the year 9999 is as late as it gets.
create function windlass.later_v1(moment bigint, span bigint) returns bigint language sql immutable parallel safe as $$
  select least(moment + span, 253402300799999)
$$;

-- When a job is due: at a time or after a while, and never before now.
create function windlass.due_v1(now bigint, due_at bigint, due_after bigint) returns bigint
language sql immutable parallel safe as $$
  select greatest(now, coalesce(due_at, least(now + coalesce(due_after, 0), 253402300799999)))
$$;
