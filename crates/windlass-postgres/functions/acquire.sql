-- Jobs as queries return them: the values in the order of `reply.rs`, followed by one value of each kind per blocker.
create view windlass.job_reply_v1 as
select
  j.id, j.seq, j.chain, j.position, j.type, j.chain_type, j.status, j.created_at,
  array[j.id, j.chain, j.worker, j.request, j.closed_by] || b.chains as ids,
  array[
    j.type, j.chain_type, j.status, j.input_codec, j.output_codec, j.error, j.on_blocker_failure, j.trace, j.worker_name
  ] || b.traces as words,
  array[
    j.position, j.priority, j.due_at, j.attempt, j.max_attempts, j.fence, j.version, j.lease_until,
    j.cancel_requested::int, j.created_at, j.started_at, j.closed_at
  ]::bigint[] || b.resolved as numbers,
  array[j.input, j.output] as bytes
from windlass.job j
left join lateral (
  select
    array_agg(b.chain order by b.position) as chains,
    array_agg(b.trace order by b.position) as traces,
    array_agg(b.resolved::int::bigint order by b.position) as resolved
  from windlass.blocker b
  where j.blockers > 0 and b.job = j.id
) b on true;

-- Chains as queries return them, in the same form. The last number is a subquery with a value instead of `exists`:
-- PostgreSQL 18 would hash the whole table for that, even with `enable_seqscan = off`.
create view windlass.chain_reply_v1 as
select
  c.id, c.seq, c.type, c.latest, c.created_at,
  array[c.id, c.latest] as ids,
  array[c.type, c.key, c.key_hold, c.closed_as, c.trace] as words,
  array[
    c.created_at, c.keep_completed, c.keep_failed, c.keep_cancelled, c.closed_at, c.retain_until, c.key_window,
    (select count(*) from windlass.key k where k.type = c.type and k.key = c.key and k.chain = c.id)
  ]::bigint[] as numbers
from windlass.chain c;

-- Locks due jobs of these types, by priority, due time and order of creation.
create function windlass.lock_due_v1(now bigint, types text[], maxima bigint[], max_jobs integer)
returns uuid[] language plpgsql as $$
declare
  level smallint := 32767;
  taken uuid[] := '{}';
begin
  if exists (select from windlass.paused) then
    select array_agg(q.type), array_agg(q.max) into types, maxima
    from unnest(types, maxima) q (type, max)
    where not exists (select from windlass.paused p where p.type = q.type);
  end if;
  loop
    -- Finds the next lower priority with pending jobs: one index step per type.
    level := (
      select max((
        select j.priority from windlass.job j
        where j.type = q.type and j.status = 'pending' and j.priority < level order by j.priority desc limit 1
      ))
      from unnest(types) q (type)
    );
    exit when level is null;
    -- If several types compete, each lane may lock as many rows as are still wanted. Rows that are not acquired are
    -- unlocked at the end of this command.
    taken := taken || array(
      select l.id
      from unnest(types, maxima) q (type, max)
      cross join lateral (
        select j.id, j.due_at, j.seq
        from windlass.job j
        where j.type = q.type and j.status = 'pending' and j.priority = level and j.due_at <= now
        order by j.due_at, j.seq
        limit least(q.max - (
          select count(*) from windlass.job t where t.id = any (taken) and t.type = q.type
        ), max_jobs - cardinality(taken))
        for no key update skip locked
      ) l
      order by l.due_at, l.seq
      limit max_jobs - cardinality(taken)
    );
    exit when cardinality(taken) >= max_jobs;
  end loop;
  return taken;
end
$$;

-- Acquires due jobs for a request, or returns those that the request already holds. Each row includes the chain's
-- fields that handlers can read.
create function windlass.acquire_jobs_v1(
  now bigint, by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer
) returns setof windlass.reply_v1 language plpgsql as $$
declare
  taken uuid[];
  most_blockers integer;
begin
  -- The same request may be sent twice concurrently.
  perform pg_advisory_xact_lock(hashtextextended(by_request::text, 0));
  taken := array(
    select id from windlass.job where request = by_request and status = 'running' order by priority desc, due_at, seq
  );
  if cardinality(taken) = 0 and max_jobs > 0 then
    taken := windlass.lock_due_v1(now, types, maxima, max_jobs);
    with took as (
      update windlass.job j
      set status = 'running', attempt = attempt + 1, fence = fence + 1, version = version + 1, started_at = now,
        worker = by_worker, worker_name = by_name, request = by_request, lease_until = windlass.later_v1(now, q.lease), ended = null
      from unnest(types, leases) q (type, lease)
      where j.id = any (taken) and q.type = j.type
      returning j.blockers
    )
    select max(t.blockers) into most_blockers from took t;
  end if;
  if cardinality(taken) = 0 then
    return;
  end if;
  return query
  select
    'job', t.n::integer, j.ids, array[c.key, c.trace] || j.words,
    array[c.created_at, c.keep_completed, c.keep_failed, c.keep_cancelled] || j.numbers, j.bytes
  from unnest(taken) with ordinality t (id, n)
  join windlass.job_reply_v1 j on j.id = t.id
  join windlass.chain c on c.id = j.chain
  order by t.n;
  if most_blockers = 0 then
    return;
  end if;
  return query
  select
    'output', t.n::integer, array[c.id], array[c.type, l.type, l.status, l.output_codec, l.error], null::bigint[],
    array[l.output]
  from unnest(taken) with ordinality t (id, n)
  join windlass.job j on j.id = t.id and j.blockers > 0
  join windlass.blocker b on b.job = j.id
  join windlass.chain c on c.id = b.chain
  join windlass.job l on l.id = c.latest
  order by t.n, b.position;
end
$$;

create function windlass.acquire_v1(
  given bigint, by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer
) returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '1s' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query select (r).* from windlass.ripple_v1(now, false, 1000) s, unnest(s.replies) r;
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
  return query select * from windlass.acquire_jobs_v1(now, by_request, by_worker, by_name, types, maxima, leases, max_jobs);
end
$$;

-- Settles, then acquires.
create function windlass.exchange_v1(
  given bigint, items windlass.settlement_v1[], new_jobs windlass.new_v1[],
  by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer
) returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '20ms' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  settled record;
begin
  select * into settled from windlass.settle_items_v1(now, items, new_jobs, 1000);
  return query select (r).* from unnest(settled.replies) r;
  -- Consequences are reported with the acquire.
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
  return query select (r).* from windlass.ripple_v1(now, false, settled.left_over) s, unnest(s.replies) r;
  return query select * from windlass.acquire_jobs_v1(now, by_request, by_worker, by_name, types, maxima, leases, max_jobs);
end
$$;

-- Completes jobs that carry nothing, then acquires.
create function windlass.exchange_plain_v1(
  given bigint, jobs uuid[], fences bigint[], codecs text[], outputs bytea[], retentions bigint[],
  by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer
) returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '20ms' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query select * from windlass.settle_plain_items_v1(now, jobs, fences, codecs, outputs, retentions);
  -- Consequences are reported with the acquire. The settlements have left nothing to unblock.
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
  return query select * from windlass.acquire_jobs_v1(now, by_request, by_worker, by_name, types, maxima, leases, max_jobs);
end
$$;

-- Renews leases.
create function windlass.renew_v1(given bigint, jobs uuid[], fences bigint[], leases bigint[])
returns setof windlass.reply_v1 language plpgsql
set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query
  with asked as materialized (
    select a.n::integer as item, a.job, a.fence, windlass.later_v1(now, a.lease) as until
    from unnest(jobs, fences, leases) with ordinality a (job, fence, lease, n)
  ), locked as materialized (
    select j.id, j.status, j.fence, j.cancel_requested
    from windlass.job j
    where j.id = any (jobs)
    order by j.id
    for no key update skip locked
  ), held as (
    -- If an attempt is listed several times, its last lease counts.
    select distinct on (a.job) a.job, a.until
    from asked a
    join locked l on l.id = a.job and l.fence = a.fence and l.status = 'running'
    order by a.job, a.item desc
  ), renewed as (
    update windlass.job j set lease_until = h.until from held h where j.id = h.job
  )
  select
    'renewed', a.item, null::uuid[],
    case
      when l.id is null and (select j.id from windlass.job j where j.id = a.job) is null then array['lost', 'not_found']
      when l.id is null then array['busy']
      when l.status = 'running' and l.fence = a.fence then array['held']
      else array['lost', l.status]
    end,
    array[a.until, l.cancel_requested::int], null::bytea[]
  from asked a
  left join locked l on l.id = a.job;
  return query select 'now', null::integer, null::uuid[], null::text[], array[now], null::bytea[];
end
$$;
