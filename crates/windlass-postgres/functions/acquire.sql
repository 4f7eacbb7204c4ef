-- The columns of a job in a reply, after those of `reply_v1`.
create view windlass.job_reply_v1 as
select
  j.id, j.chain, j.worker, j.request, j.closed_by, j.type, j.chain_type, j.status, j.input_codec, j.output_codec, j.error,
  j.on_blocker_failure, j.trace, j.worker_name, j.position, j.priority, j.due_at, j.attempt, j.max_attempts, j.fence,
  j.version, j.lease_until, j.cancel_requested, j.created_at, j.started_at, j.closed_at, j.input, j.output,
  b.chains as blockers, b.traces as blocker_traces, b.resolved as blockers_resolved, j.key, j.chain_trace,
  coalesce(j.chain_created_at, j.created_at) as chain_created_at, j.keep_completed, j.keep_failed, j.keep_cancelled, j.seq
from windlass.job j
left join lateral (
  select
    array_agg(b.chain order by b.position) as chains,
    array_agg(b.trace order by b.position) as traces,
    array_agg(b.resolved order by b.position) as resolved
  from windlass.blocker b
  where j.blockers > 0 and b.job = j.id
) b on true;

-- A row of a reply that contains jobs: the columns of `reply_v1`, followed by those of `job_reply_v1`.
create type windlass.job_row_v1 as (
  part text, item integer, ids uuid[], words text[], numbers bigint[], bytes bytea[],
  id uuid, chain uuid, worker uuid, request uuid, closed_by uuid, type text, chain_type text, status text,
  input_codec text, output_codec text, error text, on_blocker_failure text, trace text, worker_name text,
  "position" integer, priority smallint, due_at bigint, attempt bigint, max_attempts bigint, fence bigint, version bigint,
  lease_until bigint, cancel_requested boolean, created_at bigint, started_at bigint, closed_at bigint, input bytea,
  output bytea, blockers uuid[], blocker_traces text[], blockers_resolved boolean[], key text, chain_trace text,
  chain_created_at bigint, keep_completed bigint, keep_failed bigint, keep_cancelled bigint, seq bigint
);

-- A row of a reply that contains jobs, without a job.
create function windlass.row_v1(r windlass.reply_v1) returns windlass.job_row_v1 language plpgsql immutable as $$
declare
  o windlass.job_row_v1;
begin
  o.part := r.part;
  o.item := r.item;
  o.ids := r.ids;
  o.words := r.words;
  o.numbers := r.numbers;
  o.bytes := r.bytes;
  return o;
end
$$;

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

-- The total size of the inputs, and of the outputs of blockers, that an acquire returns, unless one job has more.
create function windlass.reply_bytes_v1() returns bigint language sql immutable parallel safe as $$
  select 16777216::bigint
$$;

-- Returns the size of the outputs that an acquire returns with a job.
create function windlass.outputs_bytes_v1(of_job uuid) returns bigint language plpgsql stable as $$
begin
  return (
    select coalesce(sum(octet_length(o.output)), 0)
    from (select b.chain from windlass.blocker b where b.job = of_job offset 0) b
    join windlass.chain c on c.id = any (array[b.chain])
    join windlass.job o on o.id = any (array[c.latest])
  );
end
$$;

-- Returns as many of these rows of `ready`, in order, as fit into a reply that has `used` bytes already, with their jobs and their
-- total size. An empty reply takes at least one job.
create function windlass.fitting_v1(places tid[], used bigint, out fitting tid[], out jobs uuid[], out bytes bigint)
language plpgsql as $$
begin
  select coalesce(array_agg(r.ctid), '{}'), coalesce(array_agg(r.job), '{}'), max(r.total) into fitting, jobs, bytes
  from (
    select
      r.ctid, r.job, row_number() over first_ones as n,
      (sum(r.bytes + case when r.has_blockers then windlass.outputs_bytes_v1(r.job) else 0 end) over first_ones)::bigint as total
    from windlass.ready r
    where r.ctid = any (places)
    window first_ones as (order by r.due_at, r.seq)
  ) r
  where used + r.total <= windlass.reply_bytes_v1() or used = 0 and r.n = 1;
end
$$;

-- Returns the due time at which an acquire begins to scan.
create function windlass.floor_v1(
  of_type text, of_priority smallint, floor_types text[], floor_priorities bigint[], floors bigint[]
) returns bigint language plpgsql immutable parallel safe as $$
begin
  if floor_types is null then
    return 0;
  end if;
  return coalesce((
    select min(f.floor) from unnest(floor_types, floor_priorities, floors) f (type, priority, floor)
    where f.type = of_type and f.priority = of_priority
  ), 0);
end
$$;

-- Records the leases and counts of jobs of several types that a request acquires. `places` are their rows of `ready`. Returns
-- how many of each type the request may still acquire.
create function windlass.note_acquired_v1(
  now bigint, by_request uuid, types text[], maxima bigint[], leases bigint[], places tid[]
) returns bigint[] language plpgsql as $$
begin
  -- Subqueries, so that the planner does not walk an index in order to group.
  insert into windlass.lease (request, until, type, jobs, has_blockers)
  select by_request, windlass.later_v1(now, leases[array_position(types, r.type)]), r.type, array_agg(r.job), bool_or(r.has_blockers)
  from (select r.type, r.job, r.has_blockers from windlass.ready r where r.ctid = any (places) offset 0) r
  group by r.type;
  insert into windlass.tally (jobs, type, status)
  select c.jobs * m.sign, c.type, m.status
  from (
    select count(*) as jobs, r.type
    from (select r.type from windlass.ready r where r.ctid = any (places) offset 0) r
    group by r.type
  ) c
  cross join (values (1, 'running'), (-1, 'pending')) m (sign, status);
  return array(
    select q.max - coalesce(c.jobs, 0)
    from unnest(types, maxima) with ordinality q (type, max, n)
    left join (
      select count(*) as jobs, r.type
      from (select r.type from windlass.ready r where r.ctid = any (places) offset 0) r
      group by r.type
    ) c on c.type = q.type
    order by q.n
  );
end
$$;

-- Acquires due jobs for a request, by priority, due time and order of creation, or returns those that the request already
-- holds. The client sorts them. The blockers of a job come in separate rows: most jobs have none, and a subquery
-- for each job cost a tenth of the acquire.
--
-- Each acquire scans the entries of dead rows at the beginning of the index of `ready`. If they cannot be vacuumed, the
-- client passes floors: types and priorities with the due time at which the scan begins. From time to time it passes none,
-- so that jobs below the floors are found too.
--
-- Fails if a job is locked: the rule of `lock.sql` was broken for a moment, or an operator has locked the job. The client
-- then repeats the command with `careful`, which also checks the locks of the jobs. The function itself cannot: rows that it
-- has returned stay in its reply even if it rolls back to a savepoint.
create function windlass.acquire_v1(
  given bigint, by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer,
  floor_types text[], floor_priorities bigint[], floors bigint[], in_exchange boolean,
  careful boolean
) returns setof windlass.job_row_v1 language plpgsql security definer
set lock_timeout = '1s' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set enable_bitmapscan = off
set jit = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  has_marks boolean;
  is_repeated boolean;
  has_paused boolean;
  level smallint := 32767;
  taken integer := 0;
  -- The jobs of this round, their rows of `ready`, and their size.
  jobs uuid[];
  places tid[];
  round_bytes bigint;
  -- The size of the reply so far, and whether a job was left out because of the limit.
  bytes bigint := 0;
  is_cut boolean := false;
  has_blockers boolean;
begin
  if in_exchange then
    -- It holds the rows of its settlements.
    perform set_config('lock_timeout', '20ms', true);
  end if;
  -- The same request may be sent twice concurrently. Query in a new statement, after the lock.
  perform pg_advisory_xact_lock(hashtextextended(by_request::text, 0));
  select
    exists (select from windlass.ripple), exists (select from windlass.lease l where l.request = by_request),
    exists (select from windlass.paused)
  into has_marks, is_repeated, has_paused;
  -- The first row: in an exchange, it separates the replies to the settle and to the acquire.
  return next windlass.row_v1(('now', null, null, null, array[now], null)::windlass.reply_v1);
  if has_marks then
    return query
    select o.*
    from windlass.ripple_v1(now, false, coalesce(nullif(current_setting('windlassjobs.left_over', true), '')::integer, 1000)) s,
      unnest(s.replies) r, windlass.row_v1(r) o;
  end if;
  if is_repeated then
    return query
    select 'job'::text, null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
    from (select distinct h.id from windlass.lease l cross join unnest(l.jobs) h (id) where l.request = by_request) h
    join windlass.job_reply_v1 j on j.id = any (array[h.id])
    join windlass.job o on o.id = any (array[h.id])
    where o.request = by_request and o.status = 'running';
    if found then
      return query select * from windlass.outputs_v1(by_request);
      return next windlass.row_v1(('more', null, null, null, null, null)::windlass.reply_v1);
      return;
    end if;
    -- They have ended or were requeued. Otherwise a job that is taken again would be in two rows.
    delete from windlass.lease l where l.request = by_request;
  end if;
  if has_paused then
    select array_agg(q.type), array_agg(q.max), array_agg(q.lease) into types, maxima, leases
    from unnest(types, maxima, leases) q (type, max, lease)
    where not exists (select from windlass.paused p where p.type = q.type);
  end if;
  while taken < max_jobs loop
    -- Finds the next lower priority with pending jobs: one index step per type.
    if floor_types is null then
      level := (
        select max((
          select r.priority from windlass.ready r
          where r.type = q.type and r.priority < level order by r.priority desc limit 1
        ))
        from unnest(types) q (type)
      );
    else
      level := (select max(f) from unnest(floor_priorities) f where f < level);
    end if;
    exit when level is null;
    if cardinality(types) = 1 then
      select array_agg(l.ctid), array_agg(l.job), sum(l.bytes), bool_or(l.has_blockers)
      into places, jobs, round_bytes, has_blockers
      from (
        select r.ctid, r.job, r.bytes, r.has_blockers
        from windlass.ready r
        where r.type = types[1] and r.priority = level and r.due_at <= now
          and r.due_at >= windlass.floor_v1(types[1], level, floor_types, floor_priorities, floors)
          and (not careful or cardinality(windlass.lock_free_v1(array[r.job], 'no key update')) = 1)
        order by r.due_at, r.seq
        limit least(maxima[1], max_jobs - taken)
        for update skip locked
      ) l;
    else
      -- Each type may lock as many rows as are still wanted. Rows that are not taken are unlocked at the end of this command.
      select array_agg(l.ctid), array_agg(l.job), sum(l.bytes), bool_or(l.has_blockers)
      into places, jobs, round_bytes, has_blockers
      from (
        select l.*
        from unnest(types, maxima) q (type, max)
        cross join lateral (
          select r.ctid, r.job, r.due_at, r.seq, r.bytes, r.has_blockers
          from windlass.ready r
          where r.type = q.type and r.priority = level and r.due_at <= now
            and r.due_at >= windlass.floor_v1(q.type, level, floor_types, floor_priorities, floors)
            and (not careful or cardinality(windlass.lock_free_v1(array[r.job], 'no key update')) = 1)
          order by r.due_at, r.seq
          limit least(q.max, max_jobs - taken)
          for update skip locked
        ) l
        order by l.due_at, l.seq
        limit max_jobs - taken
      ) l;
    end if;
    if has_blockers or bytes + round_bytes > windlass.reply_bytes_v1() then
      select f.fitting, f.jobs, f.bytes, cardinality(f.fitting) < cardinality(places) into places, jobs, round_bytes, is_cut
      from windlass.fitting_v1(places, bytes) f;
    end if;
    bytes := bytes + coalesce(round_bytes, 0);
    if cardinality(places) > 0 then
      if cardinality(types) = 1 then
        maxima := array[maxima[1] - cardinality(jobs)];
        insert into windlass.lease (request, until, type, jobs, has_blockers)
        values (by_request, windlass.later_v1(now, leases[1]), types[1], jobs, has_blockers);
        insert into windlass.tally (jobs, type, status)
        values (cardinality(jobs), types[1], 'running'), (-cardinality(jobs), types[1], 'pending');
      else
        maxima := windlass.note_acquired_v1(now, by_request, types, maxima, leases, places);
      end if;
      delete from windlass.ready r where r.ctid = any (places);
      -- The rows of `ready` are locked, so no other session changes these jobs. The update comes last, and not in a subquery, so
      -- that no job is copied before it is returned. Null stands for what the client has sent, and for the usual values: fewer
      -- values take less time to send and to read.
      return query
      update windlass.job j
      set status = 'running', attempt = j.attempt + 1, fence = j.fence + 1, version = j.version + 1, started_at = now,
        worker = by_worker, worker_name = by_name, request = by_request, ended = null,
        lease_until = windlass.later_v1(now, leases[array_position(types, j.type)])
      where j.id = any (jobs) and j.status = 'pending'
      returning
        'job'::text, null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[],
        j.id, nullif(j.chain, j.id), null::uuid, null::uuid, j.closed_by, j.type, nullif(j.chain_type, j.type), null::text,
        nullif(j.input_codec, 'json'), j.output_codec, j.error, nullif(j.on_blocker_failure, 'wait'), j.trace, null::text,
        j.position, j.priority, j.due_at, j.attempt, j.max_attempts, j.fence, j.version, null::bigint, j.cancel_requested,
        j.created_at, null::bigint, j.closed_at, j.input, j.output, null::uuid[], null::text[], null::boolean[], j.key,
        j.chain_trace, j.chain_created_at, j.keep_completed, j.keep_failed, j.keep_cancelled, j.seq;
    end if;
    taken := taken + coalesce(cardinality(places), 0);
    exit when is_cut;
  end loop;
  if exists (select from windlass.lease l where l.request = by_request and l.has_blockers) then
    return query select * from windlass.outputs_v1(by_request);
  end if;
  if is_cut then
    return next windlass.row_v1(('more', null, null, null, null, null)::windlass.reply_v1);
  end if;
end
$$;

-- Returns the blockers of the jobs that a request holds, and their outputs.
create function windlass.outputs_v1(by_request uuid) returns setof windlass.job_row_v1 language plpgsql stable as $$
declare
  jobs constant uuid[] := array(
    select j.id
    from windlass.lease l
    cross join unnest(l.jobs) h (id)
    cross join lateral (
      select j.id from windlass.job j
      where j.id = h.id and j.blockers > 0 and j.request = by_request and j.status = 'running'
      offset 0
    ) j
    where l.request = by_request and l.has_blockers
    order by j.id
  );
begin
  return query
  select r.*
  from unnest(jobs) j (id)
  cross join lateral (
    select
      array_agg(b.chain order by b.position) as chains,
      array_agg(b.trace order by b.position) as traces,
      array_agg(b.resolved::int::bigint order by b.position) as resolved
    from windlass.blocker b
    where b.job = j.id
  ) b
  cross join lateral windlass.row_v1(('blockers', null, j.id || b.chains, b.traces, b.resolved, null)::windlass.reply_v1) r;
  return query
  select r.*
  from unnest(jobs) j (id)
  cross join lateral (select b.chain from windlass.blocker b where b.job = j.id order by b.position) b
  join windlass.chain c on c.id = any (array[b.chain])
  join windlass.job o on o.id = any (array[c.latest])
  cross join lateral windlass.row_v1((
    'output', null, array[j.id, c.id], array[c.type, o.type, o.status, o.output_codec, o.error], null, array[o.output]
  )::windlass.reply_v1) r;
end
$$;

-- Renews one lease. The transaction of a handler begins with it. Statements on one row take a quarter less time than those on
-- arrays.
create function windlass.renew_one_v1(now bigint, of_job uuid, of_fence bigint, until bigint)
returns windlass.reply_v1 language plpgsql as $$
declare
  renewed windlass.reply_v1;
  own record;
begin
  renewed.part := 'renewed';
  renewed.item := 1;
  select j.ctid as place, j.status, j.fence, j.cancel_requested, j.request, j.lease_until, j.type into own
  from windlass.job j
  where j.id = of_job
  for no key update skip locked;
  if not found then
    renewed.words := case
      when exists (select from windlass.job j where j.id = of_job) then array['busy'] else array['lost', 'not_found']
    end;
  elsif own.status <> 'running' or own.fence <> of_fence then
    renewed.words := array['lost', own.status];
  else
    update windlass.job j set lease_until = until where j.ctid = own.place;
    if until < own.lease_until then
      insert into windlass.lease (request, until, type, has_blockers, jobs)
      values (own.request, until, own.type, false, array[of_job]);
    end if;
    renewed.words := array['held'];
    renewed.numbers := array[until, own.cancel_requested::int];
  end if;
  return renewed;
end
$$;

-- Renews leases.
create function windlass.renew_v1(given bigint, jobs uuid[], fences bigint[], leases bigint[])
returns setof windlass.reply_v1 language plpgsql security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  if cardinality(jobs) = 1 then
    return next windlass.renew_one_v1(now, jobs[1], fences[1], windlass.later_v1(now, leases[1]));
    return next ('now', null, null, null, array[now], null)::windlass.reply_v1;
    return;
  end if;
  return query
  with asked as materialized (
    select a.n::integer as item, a.job, a.fence, windlass.later_v1(now, a.lease) as until
    from unnest(jobs, fences, leases) with ordinality a (job, fence, lease, n)
  ), locked as materialized (
    select j.id, j.status, j.fence, j.cancel_requested, j.request, j.lease_until, j.type
    from windlass.job j
    where j.id = any (jobs)
    order by j.id
    for no key update skip locked
  ), held as materialized (
    -- If an attempt is listed several times, its last lease counts.
    select distinct on (a.job) a.job, a.until, l.request, l.type, a.until < l.lease_until as is_shorter
    from asked a
    join locked l on l.id = a.job and l.fence = a.fence and l.status = 'running'
    order by a.job, a.item desc
  ), renewed as (
    update windlass.job j set lease_until = h.until from held h where j.id = any (array[h.job])
  ), shortened as (
    -- The row of `lease` may belong to jobs of other attempts, whose transactions have locked it. So add a row.
    insert into windlass.lease (request, until, type, has_blockers, jobs)
    select h.request, min(h.until), h.type, false, array_agg(h.job) from held h where h.is_shorter group by h.request, h.type
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
