-- Lists jobs in the order of their creation. Reads rows until the page is full, and at most `max_scanned`. Jobs of one
-- chain are ordered by their position, and the cursor is the position plus one.
create function windlass.list_jobs_v1(
  newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], of_chain uuid,
  created_from bigint, created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  walk refcursor;
  row_id uuid;
  row_place bigint;
  passes boolean;
  scanned bigint := 0;
  reached bigint;
  listed uuid[] := '{}';
  -- How many rows of one chain are sorted.
  sorted constant bigint := case
    when cardinality(types) = 0 and cardinality(statuses) = 0 and cardinality(chain_types) = 0
      and num_nonnulls(created_from, created_to, closed_from, closed_to) = 0
    then least(max_jobs, max_scanned) else max_scanned
  end + 1;
begin
  -- A cursor reads only what is fetched. Each query has one order, so that it can follow an index.
  if of_chain is not null then
    open walk for
    select
      w.id, w.place,
      (cardinality(types) = 0 or w.type = any (types)) and (cardinality(statuses) = 0 or w.status = any (statuses))
        and (cardinality(chain_types) = 0 or w.chain_type = any (chain_types))
        and w.created_at >= coalesce(created_from, 0) and w.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or w.closed_at >= closed_from) and (closed_to is null or w.closed_at <= closed_to)
    from (
      select j.id, 1 as place, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from windlass.job j
      where j.id = of_chain and j.position = 0
        and case when newest then coalesce(after, 2) > 1 else coalesce(after, 0) < 1 end
      union all
      (
        select j.id, j.position + 1, j.type, j.status, j.chain_type, j.created_at, j.closed_at
        from windlass.job j
        where j.chain = of_chain and j.position > 0 and newest and j.position < coalesce(after, 2147483648) - 1
        order by j.position desc
        limit sorted
      )
      union all
      (
        select j.id, j.position + 1, j.type, j.status, j.chain_type, j.created_at, j.closed_at
        from windlass.job j
        where j.chain = of_chain and j.position > 0 and not newest and j.position >= coalesce(after, 0)
        order by j.position
        limit sorted
      )
    ) w
    order by case when newest then -w.place else w.place end;
  elsif newest then
    open walk for
    select
      j.id, j.seq,
      (cardinality(types) = 0 or j.type = any (types)) and (cardinality(statuses) = 0 or j.status = any (statuses))
        and (cardinality(chain_types) = 0 or j.chain_type = any (chain_types))
        and j.created_at >= coalesce(created_from, 0) and j.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or j.closed_at >= closed_from) and (closed_to is null or j.closed_at <= closed_to)
    from windlass.job j
    where j.seq < coalesce(after, 9223372036854775807)
    order by j.seq desc;
  else
    open walk for
    select
      j.id, j.seq,
      (cardinality(types) = 0 or j.type = any (types)) and (cardinality(statuses) = 0 or j.status = any (statuses))
        and (cardinality(chain_types) = 0 or j.chain_type = any (chain_types))
        and j.created_at >= coalesce(created_from, 0) and j.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or j.closed_at >= closed_from) and (closed_to is null or j.closed_at <= closed_to)
    from windlass.job j
    where j.seq > coalesce(after, 0)
    order by j.seq;
  end if;
  loop
    fetch walk into row_id, row_place, passes;
    if not found then
      reached := null;
      exit;
    end if;
    exit when scanned = max_scanned or cardinality(listed) = max_jobs;
    scanned := scanned + 1;
    reached := row_place;
    if passes then
      listed := listed || row_id;
    end if;
  end loop;
  return query
  select 'job', a.n::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
  from unnest(listed) with ordinality a (id, n)
  join windlass.job_reply_v1 j on j.id = any (array[a.id])
  order by a.n;
  if reached is not null then
    return next windlass.row_v1(('next', null, null, null, array[reached], null)::windlass.reply_v1);
  end if;
end
$$;

-- Lists chains in the order of their creation. Reads rows until the page is full, and at most `max_scanned`.
create function windlass.list_chains_v1(
  newest boolean, after bigint, max_chains bigint, types text[], statuses text[], top_level boolean, created_from bigint,
  created_to bigint, closed_from bigint, closed_to bigint, by_key text, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  walk refcursor;
  row_id uuid;
  row_place bigint;
  passes boolean;
  scanned bigint := 0;
  reached bigint;
  listed uuid[] := '{}';
begin
  -- The row of a chain is that of its first job. A subquery has a value, because PostgreSQL would build a list of all
  -- jobs with the status for `exists`.
  if newest then
    open walk for
    select
      c.id, c.seq,
      (cardinality(types) = 0 or c.chain_type = any (types)) and (by_key is null or c.key = by_key)
        and c.created_at >= coalesce(created_from, 0) and c.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or c.chain_closed_at >= closed_from) and (closed_to is null or c.chain_closed_at <= closed_to)
        and (
          cardinality(statuses) = 0
          or case when c.latest is null then c.status else (select j.status from windlass.job j where j.id = c.latest) end
            = any (statuses)
        )
        and (not top_level or (select b.chain from windlass.blocker b where b.chain = c.id limit 1) is null)
    from windlass.job c
    where c.position <= 0 and c.seq < coalesce(after, 9223372036854775807)
    order by c.seq desc;
  else
    open walk for
    select
      c.id, c.seq,
      (cardinality(types) = 0 or c.chain_type = any (types)) and (by_key is null or c.key = by_key)
        and c.created_at >= coalesce(created_from, 0) and c.created_at <= coalesce(created_to, 9223372036854775807)
        and (closed_from is null or c.chain_closed_at >= closed_from) and (closed_to is null or c.chain_closed_at <= closed_to)
        and (
          cardinality(statuses) = 0
          or case when c.latest is null then c.status else (select j.status from windlass.job j where j.id = c.latest) end
            = any (statuses)
        )
        and (not top_level or (select b.chain from windlass.blocker b where b.chain = c.id limit 1) is null)
    from windlass.job c
    where c.position <= 0 and c.seq > coalesce(after, 0)
    order by c.seq;
  end if;
  loop
    fetch walk into row_id, row_place, passes;
    if not found then
      reached := null;
      exit;
    end if;
    exit when scanned = max_scanned or cardinality(listed) = max_chains;
    scanned := scanned + 1;
    reached := row_place;
    if passes then
      listed := listed || row_id;
    end if;
  end loop;
  return query
  with page as materialized (
    select a.n::integer as n, c.id, c.latest, c.ids, c.words, c.numbers
    from unnest(listed) with ordinality a (id, n)
    join windlass.chain_reply_v1 c on c.id = any (array[a.id])
  )
  select 'chain', p.n, p.ids, p.words, p.numbers, null::bytea[], (null::windlass.job_reply_v1).*
  from page p
  union all
  select 'job', p.n, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
  from page p
  cross join lateral unnest(array[p.id] || nullif(p.latest, p.id)) w (id)
  join windlass.job_reply_v1 j on j.id = any (array[w.id]) and w.id is not null
  order by 2;
  if reached is not null then
    return next windlass.row_v1(('next', null, null, null, array[reached], null)::windlass.reply_v1);
  end if;
end
$$;

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
