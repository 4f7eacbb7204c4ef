-- Requeues jobs of these types, or of all types, whose lease has expired.
create function windlass.reap_v1(given bigint, types text[], max_jobs integer, spared uuid[])
returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '250ms' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
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
    select l.id
    from windlass.running_types_v1(types) q (type)
    cross join lateral (
      select j.id, j.lease_until, j.seq
      from windlass.job j
      where j.type = q.type and j.status = 'running' and j.lease_until <= now and j.id <> all (spared)
      order by j.lease_until, j.seq
      limit max_jobs
      for no key update skip locked
    ) l
    order by l.lease_until, l.seq
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

-- Returns these types, or all types with running jobs: one index step per type.
create function windlass.running_types_v1(types text[]) returns setof text language plpgsql stable as $$
begin
  if types is not null then
    return query select distinct t from unnest(types) t;
    return;
  end if;
  return query
  with recursive step (type) as (
    (select j.type from windlass.job j where j.status = 'running' order by j.type limit 1)
    union all
    select (select j.type from windlass.job j where j.status = 'running' and j.type > s.type order by j.type limit 1)
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
    (select j.type from windlass.job j where j.status = 'pending' order by j.type limit 1)
    union all
    select (select j.type from windlass.job j where j.status = 'pending' and j.type > s.type order by j.type limit 1)
    from step s
    where s.type is not null
  )
  select s.type from step s
  where s.type is not null and not exists (select from windlass.paused p where p.type = s.type);
end
$$;

-- Returns when the earliest pending job of a type is due: one index step per priority.
create function windlass.earliest_due_v1(of_type text) returns bigint language sql stable as $$
  with recursive step (priority) as (
    (select j.priority from windlass.job j where j.type = of_type and j.status = 'pending' order by j.priority limit 1)
    union all
    select (
      select j.priority from windlass.job j
      where j.type = of_type and j.status = 'pending' and j.priority > s.priority order by j.priority limit 1
    )
    from step s
    where s.priority is not null
  )
  select min((
    select j.due_at from windlass.job j
    where j.type = of_type and j.status = 'pending' and j.priority = s.priority order by j.due_at limit 1
  ))
  from step s
  where s.priority is not null
$$;

-- Returns the next due time and lease expiry.
create function windlass.next_due_v1(given bigint, types text[]) returns setof windlass.reply_v1 language plpgsql
set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select
    'due', null::integer, null::uuid[], null::text[],
    array[
      windlass.time_v1(given),
      (select min(windlass.earliest_due_v1(p)) from windlass.pending_types_v1(types) p),
      (
        select min((
          select j.lease_until from windlass.job j
          where j.type = r and j.status = 'running' order by j.lease_until limit 1
        ))
        from windlass.running_types_v1(types) r
      )
    ],
    null::bytea[];
end
$$;
