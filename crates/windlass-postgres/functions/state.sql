-- Where jobs are listed besides their own row: `ready` has the pending ones, `tally` counts all by type and status.

-- The value of `listed` for a job with this status.
create function windlass.listed_v1(status text) returns text language sql immutable parallel safe as $$
  select case when status in ('blocked', 'failed', 'cancelled') then status end
$$;

-- Follows a job that was stored or changed. `old` is null if it is new.
create function windlass.moved_v1(old windlass.job, new windlass.job) returns void language plpgsql as $$
begin
  if old.status = 'pending' then
    delete from windlass.ready r
    where r.type = old.type and r.priority = old.priority and r.due_at = old.due_at and r.seq = old.seq;
  end if;
  if new.status = 'pending' then
    insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
    values (
      new.seq, new.due_at, new.id, new.priority, new.blockers > 0, octet_length(new.input), new.type
    );
  end if;
  if old.status is distinct from new.status then
    insert into windlass.tally (jobs, type, status) values (1, new.type, new.status);
    if old.status is not null then
      insert into windlass.tally (jobs, type, status) values (-1, new.type, old.status);
    end if;
  end if;
end
$$;

-- Returns the rows of `ready` of the pending jobs among these. Subqueries keep the planner from beginning with `ready`.
create function windlass.ready_rows_v1(jobs uuid[]) returns tid[] language plpgsql as $$
begin
  return array(
    select r.ctid
    from windlass.job j
    cross join lateral (
      select r.ctid from windlass.ready r
      where r.type = j.type and r.priority = j.priority and r.due_at = j.due_at and r.seq = j.seq
      limit 1
    ) r
    where j.id = any (jobs) and j.status = 'pending'
  );
end
$$;

-- Remembers the fence of a deleted job. The lock prevents a concurrent call from setting a smaller value. The exception
-- releases the lock at once, so that no other transaction waits until this one ends. It does not revert `setval`.
create function windlass.note_deleted_fence_v1(last bigint) returns void language plpgsql as $$
begin
  if last > coalesce(pg_sequence_last_value('windlass.deleted_fence'), 0) then
    perform pg_advisory_xact_lock(hashtextextended('windlass.deleted_fence', 0));
    perform setval('windlass.deleted_fence', greatest(last, pg_sequence_last_value('windlass.deleted_fence')));
    raise exception using errcode = 'WL001', message = 'release the lock';
  end if;
exception when sqlstate 'WL001' then
end
$$;

-- Removes jobs with all rows that belong to them.
create function windlass.remove_jobs_v1(jobs uuid[]) returns void language plpgsql as $$
declare
  places constant tid[] := windlass.ready_rows_v1(jobs);
begin
  perform windlass.note_deleted_fence_v1((select max(j.fence) from windlass.job j where j.id = any (jobs)));
  delete from windlass.blocker where job = any (jobs);
  delete from windlass.attempt where job = any (jobs);
  delete from windlass.ready where ctid = any (places);
  with gone as (delete from windlass.job where id = any (jobs) returning type, status)
  insert into windlass.tally (jobs, type, status, former)
  select -count(*), g.type, g.status, case when g.status in ('completed', 'failed', 'cancelled') then count(*) end
  from gone g
  group by g.type, g.status;
end
$$;

-- When a closed chain may be removed. Its closing stays known for ten minutes, however short its retention is.
create function windlass.leaves_v1(closed_at bigint, retain_until bigint) returns bigint
language sql immutable parallel safe as $$
  select greatest(retain_until, windlass.later_v1(closed_at, 600000))
$$;
