-- Lists jobs with certain statuses, none of which is `completed`, without reading other jobs. Returns the rows of
-- `list_jobs`, or one row `walk` if so many pending jobs match that walking through all jobs is cheaper.
create function windlass.list_open_v1(
  newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], created_from bigint,
  created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(types) = 0 then
    types := array(select distinct t.type from windlass.tally t where t.status = any (statuses));
  end if;
  if 'pending' = any (statuses) and (
    select sum(t.jobs) from windlass.tally t where t.type = any (types) and t.status = 'pending'
  ) >= max_scanned then
    return next windlass.row_v1(('walk', null, null, null, null, null)::windlass.reply_v1);
    return;
  end if;
  return query
  with walked as materialized (
    select l.id, l.seq
    from unnest(types) t (type)
    cross join unnest(array_remove(array_remove(statuses, 'pending'), 'running')) s (status)
    cross join lateral (
      (
        select j.id, j.seq
        from windlass.job j
        where j.type = t.type and j.listed = s.status and newest and j.seq < coalesce(after, 9223372036854775807)
        order by j.seq desc
        limit max_scanned
      )
      union all
      (
        select j.id, j.seq
        from windlass.job j
        where j.type = t.type and j.listed = s.status and not newest and j.seq > coalesce(after, 0)
        order by j.seq
        limit max_scanned
      )
    ) l
    union all
    select r.job, r.seq
    from windlass.ready r
    where 'pending' = any (statuses) and r.type = any (types)
    union all
    select distinct j.id, j.seq
    from windlass.lease l
    cross join unnest(l.jobs) h (id)
    -- One index lookup per job, whatever the statistics are.
    cross join lateral (select j.id, j.seq, j.request, j.status from windlass.job j where j.id = h.id offset 0) j
    where 'running' = any (statuses) and l.type = any (types) and j.request = l.request and j.status = 'running'
  ), behind as materialized (
    select w.id, w.seq, row_number() over (order by case when newest then -w.seq else w.seq end) as n
    from walked w
    where case when newest then w.seq < coalesce(after, 9223372036854775807) else w.seq > coalesce(after, 0) end
    order by n
    limit max_scanned
  ), judged as (
    select
      b.id, b.seq, b.n,
      -- The status may have changed since.
      j.status = any (statuses) and (cardinality(chain_types) = 0 or j.chain_type = any (chain_types))
        and j.created_at >= coalesce(created_from, 0) and j.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or j.closed_at >= closed_from) and (closed_to is null or j.closed_at <= closed_to) as passes
    from behind b
    join windlass.job j on j.id = any (array[b.id])
  ), counted as materialized (
    select j.id, j.seq, j.n, j.passes, count(*) filter (where j.passes) over (order by j.n) as passed from judged j
  ), ended as (
    select coalesce(min(c.n) filter (where c.passed = max_jobs), least(max(c.n), max_scanned - 1)) as n from counted c
  )
  select 'job', c.n::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
  from counted c
  join windlass.job_reply_v1 j on j.id = any (array[c.id])
  where c.passes and c.n <= (select e.n from ended e)
  union all
  select 'next', null::integer, null::uuid[], null::text[], array[c.seq], null::bytea[], (null::windlass.job_reply_v1).*
  from counted c
  where c.n = (select e.n from ended e) and exists (select from counted m where m.n > c.n)
  order by 2;
end
$$;
