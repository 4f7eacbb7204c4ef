-- Requeues jobs of these types, or of all types, whose lease has expired.
create function windlass.reap_v1(given bigint, types text[], max_jobs integer, spared uuid[])
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  lease_expired constant text := 'the lease expired before the attempt was settled';
  own windlass.job;
  how text;
  expired uuid[];
  busy uuid[];
  left_over integer;
  replies windlass.reply_v1[];
begin
  select r.left_over, r.replies into left_over, replies from windlass.ripple_v1(now, false, 1000) r;
  return query select (r).* from unnest(replies) r;
  expired := array(
    select j.id
    from windlass.expired_v1(now, types, max_jobs, spared) e (id)
    join windlass.job j on j.id = any (array[e.id])
    order by j.lease_until, j.seq
    limit max_jobs
  );
  busy := windlass.lock_chains_v1(array(
    select j.chain from windlass.job j
    where j.id = any (expired) and (j.cancel_requested or j.attempt >= j.max_attempts)
  ), false);
  for own in
    select * from windlass.job where id = any (expired) order by lease_until, seq
  loop
    how := case when own.cancel_requested then 'cancelled' when own.attempt >= own.max_attempts then 'failed' end;
    if how is null then
      perform windlass.requeue_v1(now, own, now, lease_expired, 'reaped');
    else
      continue when own.chain = any (busy);
      perform windlass.close_job_v1(now, own, how, 'reaped', lease_expired, null, null, null);
      return next windlass.close_chain_v1(now, own.chain, how, null);
    end if;
    return query
    select
      'reaped', null::integer, array[j.id, j.chain, own.worker], array[j.status, j.type, j.chain_type, own.worker_name],
      array[j.due_at, own.attempt, own.lease_until], null::bytea[]
    from windlass.job j
    where j.id = own.id;
  end loop;
  return query select (r).* from windlass.ripple_v1(now, true, left_over) s, unnest(s.replies) r;
end
$$;

-- Locks and returns running jobs whose lease has expired: those that expired first, and maybe more. Skips jobs that
-- another transaction has locked. Moves the rows of `lease` whose jobs were all renewed or have ended.
create function windlass.expired_v1(now bigint, types text[], max_jobs integer, spared uuid[]) returns setof uuid
language plpgsql as $$
declare
  batch record;
  held record;
  first_end bigint;
  jobs uuid[] := '{}';
  ends bigint[] := '{}';
  steps integer := 1000;
begin
  for batch in
    select l.id, l.until, l.jobs, l.request
    from windlass.leased_types_v1(types) q (type)
    cross join lateral (
      select l.id, l.jobs, l.request, l.until from windlass.lease l where l.type = q.type and l.until <= now order by l.until
    ) l
    order by l.until, l.id
  loop
    -- No lease of this row or of a later one ended before `until`.
    exit when steps = 0 or cardinality(ends) >= max_jobs
      and (select e from unnest(ends) e order by e offset greatest(max_jobs, 1) - 1 limit 1) < batch.until;
    steps := steps - 1;
    select min(j.lease_until) into first_end
    from windlass.job j
    where j.id = any (batch.jobs) and j.request = batch.request and j.status = 'running';
    if first_end is null or first_end > now then
      perform windlass.move_lease_v1(batch.id);
      continue;
    end if;
    select coalesce(array_agg(e.id), '{}') as jobs, coalesce(array_agg(e.lease_until), '{}') as ends into held
    from (
      select j.id, j.lease_until
      from windlass.job j
      where j.id = any (batch.jobs) and j.request = batch.request and j.status = 'running' and j.lease_until <= now
        and j.id <> all (spared) and j.id <> all (jobs)
      order by j.lease_until, j.seq
      limit max_jobs
      for no key update skip locked
    ) e;
    jobs := jobs || held.jobs;
    ends := ends || held.ends;
  end loop;
  return query select j from unnest(jobs) j;
end
$$;

-- Moves a row of `lease` to the time when the first of its leases ends, or removes it if none is left. Skips a row that
-- another transaction has locked. Reads the jobs after it has locked the row: a renewal that shortens a lease changes its
-- job first.
create function windlass.move_lease_v1(of_lease bigint) returns void language plpgsql as $$
declare
  batch windlass.lease;
  ends bigint;
begin
  select * into batch from windlass.lease where id = of_lease for update skip locked;
  if not found then
    return;
  end if;
  select min(j.lease_until) into ends
  from windlass.job j
  where j.id = any (batch.jobs) and j.request = batch.request and j.status = 'running';
  if ends is null then
    delete from windlass.lease where id = of_lease;
  elsif ends > batch.until then
    update windlass.lease set until = ends where id = of_lease;
  end if;
end
$$;

-- Returns these types, or all types with leases: one index step per type.
create function windlass.leased_types_v1(types text[]) returns setof text language plpgsql stable as $$
begin
  if types is not null then
    return query select distinct t from unnest(types) t;
    return;
  end if;
  return query
  with recursive step (type) as (
    (select l.type from windlass.lease l order by l.type limit 1)
    union all
    select (select l.type from windlass.lease l where l.type > s.type order by l.type limit 1)
    from step s
    where s.type is not null
  )
  select s.type from step s where s.type is not null;
end
$$;

-- Returns these types, or all types with pending jobs, without paused types.
create function windlass.pending_types_v1(types text[]) returns setof text language plpgsql stable as $$
begin
  if types is not null then
    return query select distinct t from unnest(types) t where not exists (select from windlass.paused p where p.type = t);
    return;
  end if;
  return query
  with recursive step (type) as (
    (select r.type from windlass.ready r order by r.type limit 1)
    union all
    select (select r.type from windlass.ready r where r.type > s.type order by r.type limit 1)
    from step s
    where s.type is not null
  )
  select s.type from step s
  where s.type is not null and not exists (select from windlass.paused p where p.type = s.type);
end
$$;

-- Returns when the earliest pending job of a type is due: one index step per priority.
create function windlass.earliest_due_v1(of_type text) returns bigint language plpgsql stable as $$
declare
  level bigint := (select r.priority from windlass.ready r where r.type = of_type order by r.priority limit 1);
  earliest bigint;
begin
  while level is not null loop
    earliest := least(earliest, (
      select r.due_at from windlass.ready r where r.type = of_type and r.priority = level order by r.due_at limit 1
    ));
    level := (select r.priority from windlass.ready r where r.type = of_type and r.priority > level order by r.priority limit 1);
  end loop;
  return earliest;
end
$$;

-- Returns when the earliest pending job is due, from the floors on, see `acquire_jobs_v1`.
create function windlass.earliest_above_v1(floor_types text[], floor_priorities bigint[], floors bigint[]) returns bigint
language plpgsql stable as $$
begin
  return (
    select min((
      select r.due_at from windlass.ready r
      where r.type = f.type and r.priority = f.priority and r.due_at >= f.floor
      order by r.due_at
      limit 1
    ))
    from unnest(floor_types, floor_priorities, floors) f (type, priority, floor)
    where not exists (select from windlass.paused p where p.type = f.type)
  );
end
$$;

-- Returns when the first lease of a type ends. Rows of `lease` are ordered by a lower bound of that time, so the search
-- ends at the first row that cannot have an earlier one. After many rows whose jobs have ended, returns the bound, which is
-- never too late.
create function windlass.earliest_lease_v1(of_type text) returns bigint language plpgsql stable as $$
declare
  batch record;
  earliest bigint;
  steps integer := 2000;
begin
  for batch in select l.until, l.request, l.jobs from windlass.lease l where l.type = of_type order by l.until loop
    exit when earliest <= batch.until;
    if steps = 0 then
      return least(earliest, batch.until);
    end if;
    steps := steps - 1;
    select least(earliest, min(j.lease_until)) into earliest
    from windlass.job j
    where j.id = any (batch.jobs) and j.request = batch.request and j.status = 'running';
  end loop;
  return earliest;
end
$$;

-- Returns the next due time and lease expiry.
create function windlass.next_due_v1(
  given bigint, types text[], floor_types text[], floor_priorities bigint[], floors bigint[]
) returns setof windlass.reply_v1 language plpgsql security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select
    'due', null::integer, null::uuid[], null::text[],
    array[
      windlass.time_v1(given),
      case
        when floor_types is null then (select min(windlass.earliest_due_v1(p)) from windlass.pending_types_v1(types) p)
        else windlass.earliest_above_v1(floor_types, floor_priorities, floors)
      end,
      (select min(windlass.earliest_lease_v1(l)) from windlass.leased_types_v1(types) l)
    ],
    null::bytea[];
end
$$;

-- Removes rows of `lease` whose jobs have all ended, after the row `after`, and replaces rows of `tally` with their sums.
-- Nothing else removes the rows of short jobs before their leases would end. Only one session at a time does it; others
-- return at once. Returns the last row that it visited, or null at the end.
create function windlass.tidy_v1(given bigint, after bigint, max_rows integer) returns setof windlass.reply_v1
language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  visited bigint[];
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.tidy', 0)) then
    return;
  end if;
  visited := array(select l.id from windlass.lease l where l.id > coalesce(after, 0) order by l.id limit max_rows);
  delete from windlass.lease d
  where d.id in (
    select l.id
    from windlass.lease l
    where l.id = any (visited) and (
      select true from windlass.job j
      where j.id = any (l.jobs) and j.request = l.request and j.status = 'running'
      limit 1
    ) is null
    for update skip locked
  );
  perform windlass.compact_v1();
  return query
  select
    'tidied', null::integer, null::uuid[], null::text[],
    array[case when cardinality(visited) = max_rows then visited[max_rows] end], null::bytea[];
end
$$;

-- Replaces rows of `tally` with their sums.
create function windlass.compact_v1() returns void language plpgsql as $$
begin
  if (select count(*) from (select from windlass.tally limit 1000) t) < 1000
    or (select count(*) < 2 * count(distinct (t.type, t.status)) from windlass.tally t)
  then
    return;
  end if;
  with taken as (
    delete from windlass.tally t
    where t.ctid = any (array(select r.ctid from windlass.tally r limit 100000 for update skip locked))
    returning t.jobs, t.type, t.status, t.former
  )
  insert into windlass.tally (jobs, type, status, former)
  select sum(t.jobs), t.type, t.status, sum(t.former)
  from taken t
  group by t.type, t.status
  having sum(t.jobs) <> 0 or sum(t.former) <> 0;
end
$$;
