-- Counts jobs by type and status. Omits types without jobs that are not paused: they have only former jobs.
create function windlass.count_v1(given bigint, types text[]) returns setof windlass.reply_v1 language plpgsql security definer
set enable_mergejoin = off set enable_nestloop = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query
  with counts as materialized (
    select
      t.type,
      coalesce(sum(t.jobs) filter (where t.status = 'blocked'), 0) as blocked,
      coalesce(sum(t.jobs) filter (where t.status = 'pending'), 0) as pending,
      coalesce(sum(t.jobs) filter (where t.status = 'running'), 0) as running,
      coalesce(sum(t.jobs) filter (where t.status = 'completed'), 0) as completed,
      coalesce(sum(t.jobs) filter (where t.status = 'failed'), 0) as failed,
      coalesce(sum(t.jobs) filter (where t.status = 'cancelled'), 0) as cancelled,
      coalesce(sum(t.former) filter (where t.status = 'completed'), 0) as former_completed,
      coalesce(sum(t.former) filter (where t.status = 'failed'), 0) as former_failed,
      coalesce(sum(t.former) filter (where t.status = 'cancelled'), 0) as former_cancelled
    from (
      select t.type, t.status, sum(t.jobs) as jobs, sum(t.former) as former
      from windlass.tally t
      where types is null or t.type = any (types)
      group by t.type, t.status
      union all
      select p.type, null, 1, null from windlass.paused p where types is null or p.type = any (types)
    ) t
    group by t.type
    having bool_or(t.jobs <> 0)
  )
  select
    'count', null::integer, null::uuid[], array[c.type],
    array[
      c.blocked, c.pending, c.running, c.completed, c.failed, c.cancelled,
      c.former_completed, c.former_failed, c.former_cancelled, d.expired, d.paused, d.ready
    ]::bigint[],
    null::bytea[]
  from counts c
  cross join lateral windlass.count_details_v1(now, c.type, c.running > 0, c.pending > 0) d;
end
$$;

-- Returns what the sums do not contain: how many leases have expired, whether the type is paused, and when the job that
-- has been due for longest became due.
create function windlass.count_details_v1(
  now bigint, of_type text, has_running boolean, has_pending boolean, out expired bigint, out paused integer, out ready bigint
) language plpgsql stable
set jit = off set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off set enable_nestloop = on
as $$
begin
  expired := 0;
  if has_running then
    select count(distinct j.id) into expired
    from windlass.lease l
    cross join unnest(l.jobs) h (id)
    -- One index lookup per job, whatever the statistics are.
    cross join lateral (
      select j.id, j.request, j.status, j.lease_until from windlass.job j where j.id = h.id offset 0
    ) j
    where l.type = of_type and l.until <= now and j.request = l.request and j.status = 'running' and j.lease_until <= now;
  end if;
  paused := exists (select from windlass.paused p where p.type = of_type)::int;
  if has_pending then
    ready := windlass.earliest_due_v1(of_type);
    if ready > now then
      ready := null;
    end if;
  end if;
end
$$;
