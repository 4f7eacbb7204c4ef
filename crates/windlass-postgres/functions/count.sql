-- All types that have jobs or are paused: one index step per type and kind.
create function windlass.known_types_v1() returns setof text language sql stable as $$
  with recursive pending (type) as (
    (select j.type from windlass.job j where j.status = 'pending' order by j.type limit 1)
    union all
    select (select j.type from windlass.job j where j.status = 'pending' and j.type > s.type order by j.type limit 1)
    from pending s where s.type is not null
  ), running (type) as (
    (select j.type from windlass.job j where j.status = 'running' order by j.type limit 1)
    union all
    select (select j.type from windlass.job j where j.status = 'running' and j.type > s.type order by j.type limit 1)
    from running s where s.type is not null
  ), blocked (type) as (
    (select j.type from windlass.job j where j.status = 'blocked' order by j.type limit 1)
    union all
    select (select j.type from windlass.job j where j.status = 'blocked' and j.type > s.type order by j.type limit 1)
    from blocked s where s.type is not null
  ), closed (type) as (
    (select j.type from windlass.job j where j.status in ('completed', 'failed', 'cancelled') order by j.type limit 1)
    union all
    select (
      select j.type from windlass.job j
      where j.status in ('completed', 'failed', 'cancelled') and j.type > s.type order by j.type limit 1
    )
    from closed s where s.type is not null
  )
  select type from pending where type is not null
  union select type from running where type is not null
  union select type from blocked where type is not null
  union select type from closed where type is not null
  union select type from windlass.paused
$$;

-- Counts the jobs of a type that closed with this status: exactly up to a limit, above it from the statistics.
create function windlass.count_closed_v1(of_type text, how text, out jobs bigint, out estimated boolean)
language plpgsql stable as $$
declare
  exact_max constant bigint := 10000;
begin
  select count(*) into jobs from (
    select from windlass.job j
    where j.type = of_type and j.status = how and j.status in ('completed', 'failed', 'cancelled')
    limit exact_max + 1
  ) n;
  estimated := jobs > exact_max;
  if estimated then
    select greatest(jobs, (
      c.reltuples
      * coalesce((
        select f.frequency
        from pg_stats s, unnest(s.most_common_vals::text::text[], s.most_common_freqs) f (value, frequency)
        where s.schemaname = n.nspname and s.tablename = c.relname and s.attname = 'type' and f.value = of_type
      ), 0)
      * coalesce((
        select f.frequency
        from pg_stats s, unnest(s.most_common_vals::text::text[], s.most_common_freqs) f (value, frequency)
        where s.schemaname = n.nspname and s.tablename = c.relname and s.attname = 'status' and f.value = how
      ), 0)
    )::bigint)
    into jobs
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where c.oid = 'windlass.job'::regclass;
  end if;
end
$$;

-- Counts jobs by type and status.
create function windlass.count_v1(given bigint, types text[]) returns setof windlass.reply_v1 language plpgsql
set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query
  select
    'count', null::integer, null::uuid[], array[t.type],
    array[
      (select count(*) from windlass.job j where j.type = t.type and j.status = 'blocked'),
      (select count(*) from windlass.job j where j.type = t.type and j.status = 'pending'),
      (select count(*) from windlass.job j where j.type = t.type and j.status = 'running'),
      c.jobs, f.jobs, x.jobs,
      (c.estimated or f.estimated or x.estimated)::int,
      (select count(*) from windlass.job j where j.type = t.type and j.status = 'running' and j.lease_until <= now),
      (exists (select from windlass.paused p where p.type = t.type))::int,
      case when e.due_at <= now then e.due_at end
    ]::bigint[],
    null::bytea[]
  from (
    select k.type from windlass.known_types_v1() k (type) where types is null or k.type = any (types)
  ) t
  cross join lateral windlass.count_closed_v1(t.type, 'completed') c
  cross join lateral windlass.count_closed_v1(t.type, 'failed') f
  cross join lateral windlass.count_closed_v1(t.type, 'cancelled') x
  cross join lateral (select windlass.earliest_due_v1(t.type) as due_at) e;
end
$$;
