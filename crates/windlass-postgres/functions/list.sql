-- Lists in the order of creation. A list reads one or more cursors, each of which is in this order, until the page is full. A
-- cursor reads only what is fetched.
--
-- A list of certain statuses avoids other jobs. Blocked, failed and cancelled ones are in an index by creation
-- (`windlass_job_listed`). Pending and running jobs are not, see docs/design/006-postgresql.md: if there are more than a
-- few, the list begins with all jobs, and if they do not fill the page soon, it sorts the pending and running ones. If
-- there are too many of them to sort, it goes on with all jobs.
--
-- All functions are stable, so that everything that a list reads is of one snapshot. With a snapshot for each cursor, a job whose
-- status changes in between could be listed twice, or not at all.

-- What listed jobs and listed chains match. An empty array matches everything.
create type windlass.job_filter_v1 as (
  types text[], statuses text[], chain_types text[], created_from bigint, created_to bigint, closed_from bigint, closed_to bigint
);
create type windlass.chain_filter_v1 as (
  types text[], statuses text[], top_level boolean, created_from bigint, created_to bigint, closed_from bigint,
  closed_to bigint, key text
);

-- Merges cursors, which return the id of a row, its place, and whether it passes. Stops when the page is full, or when
-- `max_scanned` rows have been scanned. Returns the place of the last row that was scanned, or null if none follows it.
create function windlass.merge_v1(
  walks refcursor[], newest boolean, max_listed bigint, max_scanned bigint, inout listed uuid[], inout scanned bigint,
  inout reached bigint
) language plpgsql stable as $$
declare
  walk refcursor;
  row_id uuid;
  row_place bigint;
  passes boolean;
  -- The cursors that have more rows, and the next row of each.
  left_over refcursor[];
  ids uuid[];
  places bigint[];
  passing boolean[];
  first integer;
begin
  if cardinality(walks) = 1 then
    walk := walks[1];
    loop
      fetch walk into row_id, row_place, passes;
      if not found then
        reached := null;
        exit;
      end if;
      exit when scanned >= max_scanned or cardinality(listed) >= max_listed;
      scanned := scanned + 1;
      reached := row_place;
      if passes then
        listed := listed || row_id;
      end if;
    end loop;
    close walk;
    return;
  end if;
  foreach walk in array walks loop
    fetch walk into row_id, row_place, passes;
    if found then
      left_over := left_over || walk;
      ids := ids || row_id;
      places := places || row_place;
      passing := passing || passes;
    else
      close walk;
    end if;
  end loop;
  loop
    if coalesce(cardinality(places), 0) = 0 then
      reached := null;
      exit;
    end if;
    exit when scanned >= max_scanned or cardinality(listed) >= max_listed;
    first := 1;
    for n in 2 .. cardinality(places) loop
      if (places[n] > places[first]) = newest then
        first := n;
      end if;
    end loop;
    scanned := scanned + 1;
    reached := places[first];
    if passing[first] then
      listed := listed || ids[first];
    end if;
    walk := left_over[first];
    fetch walk into row_id, row_place, passes;
    if found then
      ids[first] := row_id;
      places[first] := row_place;
      passing[first] := passes;
    else
      close walk;
      left_over := left_over[:first - 1] || left_over[first + 1:];
      ids := ids[:first - 1] || ids[first + 1:];
      places := places[:first - 1] || places[first + 1:];
      passing := passing[:first - 1] || passing[first + 1:];
    end if;
  end loop;
  if cardinality(left_over) > 0 then
    foreach walk in array left_over loop
      close walk;
    end loop;
  end if;
end
$$;

-- The index `windlass_job_listed` ends with `least(position, 1)` and `seq`. Lists compare and order by both, although the first
-- has one value: by `seq` alone, the planner may prefer the index of all jobs, depending on the statistics.

-- Opens a cursor on the jobs of a source, after a place. Only one part of the union has rows. These are the sources:
--
-- - `all`: all jobs.
-- - `listed`: jobs of this type with this status, which is in the index. `later` is 0 for first jobs of their chain, else 1.
-- - `pending`: the next `max_jobs` pending jobs of the types. Reads all rows of `ready` of these types, but only its index.
-- - `running`: the running ones among these jobs.
create function windlass.walk_jobs_v1(
  source text, newest boolean, after bigint, wanted windlass.job_filter_v1, of_type text, of_status text, later integer,
  max_jobs bigint, jobs uuid[]
) returns refcursor language plpgsql stable as $$
declare
  walk refcursor;
  start constant bigint := coalesce(after, case when newest then 9223372036854775807 else 0 end);
begin
  open walk for
  select
    w.id, w.seq,
    (cardinality(wanted.types) = 0 or w.type = any (wanted.types))
      and (cardinality(wanted.statuses) = 0 or w.status = any (wanted.statuses))
      and (cardinality(wanted.chain_types) = 0 or w.chain_type = any (wanted.chain_types))
      and w.created_at >= coalesce(wanted.created_from, 0) and w.created_at <= coalesce(wanted.created_to, 9223372036854775807)
      and (wanted.closed_from is null or w.closed_at >= wanted.closed_from)
      and (wanted.closed_to is null or w.closed_at <= wanted.closed_to)
  from (
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from windlass.job j
      where source = 'all' and newest and j.seq < start
      order by j.seq desc
    )
    union all
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from windlass.job j
      where source = 'all' and not newest and j.seq > start
      order by j.seq
    )
    union all
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from windlass.job j
      where source = 'listed' and newest and j.type = of_type and j.listed = of_status
        and least(j.position, 1) >= later and (least(j.position, 1), j.seq) < (later, start)
      order by least(j.position, 1) desc, j.seq desc
    )
    union all
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from windlass.job j
      where source = 'listed' and not newest and j.type = of_type and j.listed = of_status
        and least(j.position, 1) <= later and (least(j.position, 1), j.seq) > (later, start)
      order by least(j.position, 1), j.seq
    )
    union all
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from (
        select r.seq, case when newest then -r.seq else r.seq end as place
        from windlass.ready r
        where source = 'pending' and r.type = any (wanted.types) and case when newest then r.seq < start else r.seq > start end
        order by place
        limit max_jobs
      ) r
      join windlass.job j on j.seq = any (array[r.seq])
      order by r.place
    )
    union all
    (
      select j.id, j.seq, j.type, j.status, j.chain_type, j.created_at, j.closed_at
      from (select distinct h.id from unnest(jobs) h (id) where source = 'running') h
      -- One index lookup per job, whatever the statistics are.
      cross join lateral (select * from windlass.job j where j.id = h.id offset 0) j
      where j.status = 'running' and case when newest then j.seq < start else j.seq > start end
      order by case when newest then -j.seq else j.seq end
    )
  ) w;
  return walk;
end
$$;

-- Lists jobs. Reads rows until the page is full, and at most `max_scanned`. Jobs of one chain are ordered by their
-- position, and the cursor is the position plus one.
create function windlass.list_jobs_v1(
  newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], of_chain uuid,
  created_from bigint, created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant windlass.job_filter_v1 := (types, statuses, chain_types, created_from, created_to, closed_from, closed_to);
  walk refcursor;
  scanned bigint := 0;
  reached bigint := after;
  listed uuid[] := '{}';
  -- How many rows of one chain are sorted.
  sorted constant bigint := case
    when cardinality(types) = 0 and cardinality(statuses) = 0 and cardinality(chain_types) = 0
      and num_nonnulls(created_from, created_to, closed_from, closed_to) = 0
    then least(max_jobs, max_scanned) else max_scanned
  end + 1;
begin
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
  else
    walk := windlass.walk_jobs_v1('all', newest, after, wanted, null, null, null, null, null);
  end if;
  select m.listed, m.reached into listed, reached
  from windlass.merge_v1(array[walk], newest, max_jobs, max_scanned, listed, scanned, reached) m;
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

-- Lists jobs with certain statuses, none of which is `completed`.
create function windlass.list_open_v1(
  newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], created_from bigint,
  created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  wanted windlass.job_filter_v1;
  near constant bigint := least(4 * max_jobs + 100, max_scanned);
  pending bigint;
  running bigint;
  held uuid[] := '{}';
  stored record;
  walks refcursor[] := '{}';
  listed uuid[] := '{}';
  scanned bigint := 0;
  reached bigint := after;
  is_done boolean := false;
begin
  if cardinality(types) = 0 then
    types := array(select distinct t.type from windlass.tally t where t.status = any (statuses));
  end if;
  wanted := (types, statuses, chain_types, created_from, created_to, closed_from, closed_to);
  select
    coalesce(sum(t.jobs) filter (where t.status = 'pending'), 0), coalesce(sum(t.jobs) filter (where t.status = 'running'), 0)
  into pending, running
  from windlass.tally t
  where t.type = any (types) and t.status = any (statuses);
  if pending + running > near then
    select m.* into listed, scanned, reached
    from windlass.merge_v1(
      array[windlass.walk_jobs_v1('all', newest, after, wanted, null, null, null, null, null)],
      newest, max_jobs, near, listed, scanned, reached
    ) m;
    is_done := reached is null or cardinality(listed) = max_jobs;
  end if;
  if not is_done then
    if running > 0 and running <= max_scanned then
      held := array(
        -- A lease also names jobs that have ended since.
        select j.id
        from windlass.lease l
        cross join unnest(l.jobs) h (id)
        cross join lateral (
          select j.id from windlass.job j where j.id = h.id and j.status = 'running' and j.request = l.request offset 0
        ) j
        where l.type = any (types)
        limit max_scanned + 1
      );
    end if;
    -- Reading an entry of the index of `ready` takes a fraction of the time of reading a job.
    if pending > 10 * max_scanned or running > max_scanned or cardinality(held) > max_scanned then
      walks := array[windlass.walk_jobs_v1('all', newest, reached, wanted, null, null, null, null, null)];
    else
      for stored in
        select t.type, t.status, p.later
        from windlass.tally t
        cross join (values (0), (1)) p (later)
        where t.type = any (types) and t.status = any (statuses) and t.status not in ('pending', 'running')
        group by t.type, t.status, p.later
        having sum(t.jobs) > 0
      loop
        walks := walks || windlass.walk_jobs_v1(
          'listed', newest, reached, wanted, stored.type, stored.status, stored.later, null, null
        );
      end loop;
      if pending > 0 then
        -- Fewer rows take less time to sort.
        max_scanned := least(max_scanned, scanned + 10 * near);
        walks := walks || windlass.walk_jobs_v1(
          'pending', newest, reached, wanted, null, null, null, max_scanned - scanned + 1, null
        );
      end if;
      if running > 0 then
        walks := walks || windlass.walk_jobs_v1('running', newest, reached, wanted, null, null, null, null, held);
      end if;
    end if;
    select m.* into listed, scanned, reached
    from windlass.merge_v1(walks, newest, max_jobs, max_scanned, listed, scanned, reached) m;
  end if;
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

-- Opens a cursor on the chains of a source, after a place. The row of a chain is that of its first job. Only one part of the
-- union has rows. These are the sources:
--
-- - `all`: all chains.
-- - `listed`: chains of this type whose first job has this status, which is in the index.
-- - `others`: those among these chains that are not in the source `listed`.
--
-- A subquery has a value, because PostgreSQL would build a list of all jobs with the status for `exists`.
create function windlass.walk_chains_v1(
  source text, newest boolean, after bigint, wanted windlass.chain_filter_v1, of_type text, of_status text, chains uuid[]
) returns refcursor language plpgsql stable as $$
declare
  walk refcursor;
  start constant bigint := coalesce(after, case when newest then 9223372036854775807 else 0 end);
begin
  open walk for
  select
    c.id, c.seq,
    (cardinality(wanted.types) = 0 or c.chain_type = any (wanted.types)) and (wanted.key is null or c.key = wanted.key)
      and c.created_at >= coalesce(wanted.created_from, 0) and c.created_at <= coalesce(wanted.created_to, 9223372036854775807)
      and (wanted.closed_from is null or c.chain_closed_at >= wanted.closed_from)
      and (wanted.closed_to is null or c.chain_closed_at <= wanted.closed_to)
      and (
        cardinality(wanted.statuses) = 0
        or case when c.latest is null then c.status else (select j.status from windlass.job j where j.id = c.latest) end
          = any (wanted.statuses)
      )
      and (not wanted.top_level or (select b.chain from windlass.blocker b where b.chain = c.id limit 1) is null)
  from (
    (
      select c.id, c.seq, c.chain_type, c.key, c.created_at, c.chain_closed_at, c.latest, c.status
      from windlass.job c
      where source = 'all' and newest and c.position <= 0 and c.seq < start
      order by c.seq desc
    )
    union all
    (
      select c.id, c.seq, c.chain_type, c.key, c.created_at, c.chain_closed_at, c.latest, c.status
      from windlass.job c
      where source = 'all' and not newest and c.position <= 0 and c.seq > start
      order by c.seq
    )
    union all
    (
      select c.id, c.seq, c.chain_type, c.key, c.created_at, c.chain_closed_at, c.latest, c.status
      from windlass.job c
      where source = 'listed' and newest and c.type = of_type and c.listed = of_status
        and least(c.position, 1) >= 0 and (least(c.position, 1), c.seq) < (0, start)
      order by least(c.position, 1) desc, c.seq desc
    )
    union all
    (
      select c.id, c.seq, c.chain_type, c.key, c.created_at, c.chain_closed_at, c.latest, c.status
      from windlass.job c
      where source = 'listed' and not newest and c.type = of_type and c.listed = of_status
        and least(c.position, 1) <= 0 and (least(c.position, 1), c.seq) > (0, start)
      order by least(c.position, 1), c.seq
    )
    union all
    (
      select c.id, c.seq, c.chain_type, c.key, c.created_at, c.chain_closed_at, c.latest, c.status
      from (select distinct o.id from unnest(chains) o (id) where source = 'others') o
      -- One index lookup per chain, whatever the statistics are.
      cross join lateral (select * from windlass.job c where c.id = o.id offset 0) c
      where c.listed is null and case when newest then c.seq < start else c.seq > start end
      order by case when newest then -c.seq else c.seq end
    )
  ) c;
  return walk;
end
$$;

-- Returns the chains that may have one of these statuses and whose place no index knows: their latest job is pending or
-- running, or is blocked, failed or cancelled and not their first. Returns null if there are more than `max_chains`.
create function windlass.other_chains_v1(statuses text[], max_chains bigint) returns uuid[] language plpgsql stable as $$
declare
  chains uuid[];
begin
  chains := array(
    select j.chain
    from windlass.ready r
    -- One index lookup per job, whatever the statistics are.
    cross join lateral (select j.chain from windlass.job j where j.id = r.job offset 0) j
    where 'pending' = any (statuses) and r.type = any (array(select t.type from windlass.tally t where t.status = 'pending'))
    union all
    select j.chain
    from windlass.lease l
    cross join unnest(l.jobs) h (id)
    cross join lateral (
      select j.chain from windlass.job j where j.id = h.id and j.status = 'running' and j.request = l.request offset 0
    ) j
    where 'running' = any (statuses) and l.type = any (array(select t.type from windlass.tally t where t.status = 'running'))
    union all
    select j.chain
    from (
      select t.type, t.status
      from windlass.tally t
      where t.status = any (statuses) and t.status not in ('pending', 'running')
      group by t.type, t.status
      having sum(t.jobs) > 0
    ) t
    cross join lateral (
      select j.chain
      from windlass.job j
      where j.type = t.type and j.listed = t.status and least(j.position, 1) >= 1
      order by least(j.position, 1), j.seq
      limit max_chains + 1
    ) j
    limit max_chains + 1
  );
  return case when cardinality(chains) <= max_chains then chains end;
end
$$;

-- Lists chains. Reads rows until the page is full, and at most `max_scanned`.
create function windlass.list_chains_v1(
  newest boolean, after bigint, max_chains bigint, types text[], statuses text[], top_level boolean, created_from bigint,
  created_to bigint, closed_from bigint, closed_to bigint, by_key text, max_scanned bigint
) returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant windlass.chain_filter_v1 := (
    types, statuses, top_level, created_from, created_to, closed_from, closed_to, by_key
  );
  has_statuses constant boolean := cardinality(statuses) > 0 and 'completed' <> all (statuses);
  near constant bigint := least(4 * max_chains + 100, max_scanned);
  moving bigint := 0;
  others uuid[];
  stored record;
  walks refcursor[] := '{}';
  listed uuid[] := '{}';
  scanned bigint := 0;
  reached bigint := after;
  is_done boolean := false;
begin
  if has_statuses then
    select coalesce(sum(t.jobs), 0) into moving
    from windlass.tally t
    where t.status = any (statuses) and t.status in ('pending', 'running');
  end if;
  if moving > near then
    select m.* into listed, scanned, reached
    from windlass.merge_v1(
      array[windlass.walk_chains_v1('all', newest, after, wanted, null, null, null)],
      newest, max_chains, near, listed, scanned, reached
    ) m;
    is_done := reached is null or cardinality(listed) = max_chains;
  end if;
  if not is_done then
    if has_statuses and moving <= max_scanned then
      others := windlass.other_chains_v1(statuses, max_scanned);
    end if;
    if others is null then
      walks := array[windlass.walk_chains_v1('all', newest, reached, wanted, null, null, null)];
    else
      for stored in
        select t.type, t.status
        from windlass.tally t
        where (cardinality(types) = 0 or t.type = any (types)) and t.status = any (statuses)
          and t.status not in ('pending', 'running')
        group by t.type, t.status
        having sum(t.jobs) > 0
      loop
        walks := walks || windlass.walk_chains_v1('listed', newest, reached, wanted, stored.type, stored.status, null);
      end loop;
      walks := walks || windlass.walk_chains_v1('others', newest, reached, wanted, null, null, others);
    end if;
    select m.* into listed, scanned, reached
    from windlass.merge_v1(walks, newest, max_chains, max_scanned, listed, scanned, reached) m;
  end if;
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
