-- The time of a command: the database's clock, unless a test sets another time.
create function windlass.time_v1(given bigint) returns bigint language sql volatile as $$
  select coalesce(given, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
$$;

-- Adds a duration, capped at the end of the year 9999.
create function windlass.later_v1(moment bigint, span bigint) returns bigint language sql immutable parallel safe as $$
  select least(moment + span, 253402300799999)
$$;

-- The due time of a job: at a time or after a delay, never before now.
create function windlass.due_v1(now bigint, due_at bigint, due_after bigint) returns bigint
language sql immutable parallel safe as $$
  select greatest(now, coalesce(due_at, least(now + coalesce(due_after, 0), 253402300799999)))
$$;
