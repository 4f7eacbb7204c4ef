-- The time that a test has set. Only the owner of the tables may set it: with it, any lease and any retention would seem to
-- have ended. Not called if none is set.
create function windlass.test_time_v1(given bigint) returns bigint language plpgsql strict as $$
begin
  if not pg_catalog.pg_has_role(
    session_user, (select c.relowner from pg_catalog.pg_class c where c.oid = 'windlass.job'::regclass), 'member'
  ) then
    raise exception using errcode = '42501', message = 'only the owner of the tables may set the time';
  end if;
  return given;
end
$$;

-- The time of a command: the database's clock, unless a test sets another time.
create function windlass.time_v1(given bigint) returns bigint language sql volatile as $$
  select coalesce(windlass.test_time_v1(given), floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
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
