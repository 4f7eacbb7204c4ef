-- Resolves targets to chains: by id, by one of their jobs, or by the key that points at them.
create function windlass.find_v1(now bigint, chains uuid[], jobs uuid[], types text[], keys text[])
returns table (item integer, chain uuid) language sql stable as $$
  select t.n::integer, case
    when t.chain is not null then (select c.id from windlass.chain c where c.id = t.chain)
    when t.job is not null then (select j.chain from windlass.job j where j.id = t.job)
    else (
      select c.id
      from windlass.key k
      join windlass.chain c on c.id = any (array[k.chain]) and (c.closed_at is null or now < c.retain_until)
      where k.type = t.type and k.key = t.key
    )
  end
  from unnest(chains, jobs, types, keys) with ordinality t (chain, job, type, key, n)
$$;

-- Cancels chains.
create function windlass.cancel_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[], ask boolean)
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  of_chain windlass.chain;
  own windlass.job;
  what text;
  targets uuid[];
  busy_chains uuid[];
  busy_jobs uuid[];
begin
  targets := array(select f.chain from windlass.find_v1(now, chains, jobs, types, keys) f where f.chain is not null);
  busy_chains := windlass.lock_chains_v1(targets, false);
  busy_jobs := windlass.lock_jobs_v1(array(select c.latest from windlass.chain c where c.id = any (targets) and c.closed_at is null));
  -- Processed one by one: cancelling a chain that is not kept releases its key, which later targets may name.
  for item in 1 .. cardinality(chains) loop
    select c.* into of_chain
    from windlass.find_v1(now, chains[item : item], jobs[item : item], types[item : item], keys[item : item]) f
    join windlass.chain c on c.id = any (array[f.chain]);
    select * into own from windlass.job where id = of_chain.latest;
    what := case
      when of_chain.id is null then 'not_found'
      when of_chain.id = any (busy_chains) or own.id = any (busy_jobs) then 'busy'
      when of_chain.closed_at is not null then 'closed'
      when own.status <> 'running' then 'cancelled'
      when ask then 'asked'
      else 'running'
    end;
    return query
    select
      'cancelled', item, array[of_chain.id, own.id, own.worker], array[what, of_chain.closed_as], null::bigint[], null::bytea[];
    if what = 'cancelled' then
      perform windlass.close_job_v1(now, own, 'cancelled', null, own.error, null, null, null);
      return next windlass.close_chain_v1(now, of_chain.id, 'cancelled', null);
    elsif what = 'asked' and not own.cancel_requested then
      update windlass.job set cancel_requested = true, version = version + 1 where id = own.id;
    end if;
  end loop;
  return query select (r).* from windlass.ripple_v1(now, true, 1000) s, unnest(s.replies) r;
end
$$;

-- Makes pending jobs due now, all or none.
create function windlass.trigger_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[])
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  targets uuid[];
  busy uuid[];
  places tid[];
begin
  -- A target that names a job means exactly that job. Any other target means the latest job of its chain.
  targets := array(
    select coalesce(jobs[f.item], c.latest)
    from windlass.find_v1(now, chains, jobs, types, keys) f
    left join windlass.chain c on c.id = any (array[f.chain])
    order by f.item
  );
  busy := windlass.lock_jobs_v1(array_remove(targets, null));
  if exists (
    select from unnest(targets) t (id) left join windlass.job j on j.id = any (array[t.id])
    where j.status is distinct from 'pending' or j.id = any (busy)
  ) then
    return query
    select
      'refused', t.n::integer, null::uuid[], case
        when j.id is null then array['not_found']
        when j.id = any (busy) then array['busy']
        when j.status <> 'pending' then array['not_pending', j.status]
      end, null::bigint[], null::bytea[]
    from unnest(targets) with ordinality t (id, n)
    left join windlass.job j on j.id = any (array[t.id]);
    return;
  end if;
  -- `ready` first: its rows are found by the former due times.
  places := windlass.ready_rows_v1(targets);
  delete from windlass.ready where ctid = any (places);
  with triggered as (
    update windlass.job j set due_at = now, version = j.version + 1 where j.id = any (targets)
    returning j.seq, j.due_at, j.id, j.priority, j.blockers, octet_length(j.input) as bytes, j.type
  )
  insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
  select t.seq, t.due_at, t.id, t.priority, t.blockers > 0, t.bytes, t.type from triggered t;
  return query
  select
    'triggered', t.n::integer, array[j.id, j.chain], array[j.status, j.type, j.chain_type], array[j.due_at], null::bytea[]
  from unnest(targets) with ordinality t (id, n)
  join windlass.job j on j.id = any (array[t.id]);
end
$$;

-- Reopens a chain that failed or was cancelled. All rows it needs are locked.
create function windlass.retry_one_v1(now bigint, at_item integer, wanted uuid, seen_version bigint)
returns windlass.reply_v1 language plpgsql as $$
declare
  reply windlass.reply_v1;
  own windlass.job;
  of_chain windlass.chain;
  other uuid;
  reopened windlass.job;
  how text;
begin
  reply.part := 'retried';
  reply.item := at_item;
  select * into own from windlass.job where id = wanted;
  if own.id is null then
    reply.words := array['not_found'];
    return reply;
  elsif own.version > seen_version then
    reply.words := array['already_retried'];
    return reply;
  elsif own.version <> seen_version or own.status not in ('failed', 'cancelled') then
    reply.words := array['not_retriable', own.status];
    return reply;
  end if;
  select * into of_chain from windlass.chain where id = own.chain;
  other := windlass.holder_v1(now, of_chain.type, of_chain.key);
  if other <> of_chain.id then
    reply.ids := array[other];
    reply.words := array['refused', 'key_taken'];
    return reply;
  end if;
  select array[b.chain], array['refused', case when c.id is null then 'blocker_not_found' else 'blocker_failed' end]
  into reply.ids, reply.words
  from windlass.blocker b
  left join windlass.chain c on c.id = any (array[b.chain])
  where b.job = own.id
    and (c.id is null or own.on_blocker_failure = 'fail' and c.closed_as in ('failed', 'cancelled'))
  order by b.position
  limit 1;
  if found then
    return reply;
  end if;

  if own.ended is not null and own.worker is not null then
    perform windlass.record_attempt_v1(own, own.closed_at, own.ended, own.error);
  end if;
  update windlass.blocker b
  set resolved = b.resolved or n.resolved, waiting = not (b.resolved or n.resolved), needed = true
  from (
    select
      c.id, c.closed_as is not null and (c.closed_as = 'completed' or own.on_blocker_failure = 'receive') as resolved
    from windlass.chain c
  ) n
  where b.job = own.id and n.id = any (array[b.chain]);
  -- As for a new job: a snapshot may show a blocker as open that has closed since.
  if own.blockers > 0 and windlass.in_snapshot_v1() then
    perform windlass.mark_v1(now, array(select b.chain from windlass.blocker b where b.job = own.id));
  end if;
  -- Not `exists`: see `chain_reply_v1`.
  select case when (select true from windlass.blocker b where b.job = own.id and b.waiting limit 1) then 'blocked' else 'pending' end
  into how;
  update windlass.job j
  set status = how, listed = windlass.listed_v1(how), due_at = now, attempt = 0, version = version + 1, closed_at = null,
    closed_by = null, cancel_requested = false, ended = null
  where j.id = own.id
  returning * into reopened;
  perform windlass.moved_v1(own, reopened);
  insert into windlass.tally (jobs, type, status, former) values (0, own.type, own.status, 1);
  reply.ids := array[reopened.id, reopened.chain];
  reply.words := array['retried', reopened.status, reopened.type, reopened.chain_type];
  reply.numbers := array[reopened.due_at];
  update windlass.chain set closed_at = null, closed_as = null, retain_until = null where id = own.chain;
  perform windlass.set_trim_v1(own.chain);
  if of_chain.key is not null then
    insert into windlass.key (type, key, chain) values (of_chain.type, of_chain.key, of_chain.id)
    on conflict (type, key) do update set chain = excluded.chain;
  end if;
  return reply;
end
$$;

-- Reopens chains that failed or were cancelled.
create function windlass.retry_v1(given bigint, jobs uuid[], versions bigint[])
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  target record;
  busy uuid[];
  held uuid[];
begin
  busy := windlass.lock_jobs_v1(jobs);
  for target in
    select j.id, c.type, c.key
    from windlass.job j
    join windlass.chain c on c.id = any (array[j.chain])
    where j.id = any (jobs) and j.id <> all (busy) and c.key is not null
    order by c.type, c.key
  loop
    if not windlass.lock_key_v1(now, target.type, target.key)
      or not windlass.lock_pointed_v1(target.type, target.key)
    then
      busy := busy || target.id;
    end if;
  end loop;
  -- Each lock function is called once for all rows. In a condition it would be called for each row.
  held := windlass.lock_chains_v1(array(select j.chain from windlass.job j where j.id = any (jobs)), false);
  busy := busy || array(select j.id from windlass.job j where j.id = any (jobs) and j.chain = any (held));
  held := windlass.lock_chains_v1(array(select distinct b.chain from windlass.blocker b where b.job = any (jobs)), true);
  busy := busy || array(select b.job from windlass.blocker b where b.job = any (jobs) and b.chain = any (held));
  for target in select * from unnest(jobs, versions) with ordinality t (job, version, n) order by n loop
    if target.job = any (busy) then
      return query select 'retried', target.n::integer, null::uuid[], array['busy'], null::bigint[], null::bytea[];
    else
      return next windlass.retry_one_v1(now, target.n::integer, target.job, target.version);
    end if;
  end loop;
  delete from windlass.key k using windlass.job j, windlass.chain c
  where j.id = any (jobs) and c.id = any (array[j.chain]) and k.type = any (array[c.type]) and k.key = c.key and k.chain is null;
  if windlass.in_snapshot_v1() and exists (select from windlass.blocker b where b.job = any (jobs)) then
    return query select 'deferred', null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[];
  end if;
end
$$;

-- Sets how long closed chains are kept, counted from now.
create function windlass.set_retention_v1(
  given bigint, chains uuid[], jobs uuid[], types text[], keys text[], retention bigint
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  of_chain windlass.chain;
  until bigint;
  busy uuid[];
begin
  busy := windlass.lock_chains_v1(array(
    select distinct f.chain from windlass.find_v1(now, chains, jobs, types, keys) f where f.chain is not null
  ), false);
  until := windlass.later_v1(now, retention);
  -- Processed one by one: a retention that ends now releases a key, which later targets may name.
  for item in 1 .. cardinality(chains) loop
    select c.* into of_chain
    from windlass.find_v1(
      now, chains[item : item], jobs[item : item], types[item : item], keys[item : item]
    ) f
    join windlass.chain c on c.id = any (array[f.chain]);
    if found and of_chain.closed_at is not null and of_chain.id <> all (busy) then
      update windlass.chain set retain_until = until where id = of_chain.id;
      -- A later time needs no row: when expire reaches the row of the former time, it moves the chain.
      if windlass.leaves_v1(of_chain.closed_at, until) < windlass.leaves_v1(of_chain.closed_at, of_chain.retain_until) then
        insert into windlass.leaving (leaves_at, chains)
        values (windlass.leaves_v1(of_chain.closed_at, until), array[of_chain.id]);
      end if;
    end if;
    return query select 'retention', item, null::uuid[], case
        when of_chain.id is null then array['not_found']
        when of_chain.id = any (busy) then array['busy']
        when of_chain.closed_at is null then array['not_closed']
        else array['until']
      end, array[until], null::bytea[];
  end loop;
end
$$;

-- Pauses or resumes job types.
create function windlass.pause_v1(given bigint, types text[], pausing boolean) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms'
set search_path = pg_catalog, pg_temp
as $$
declare
  changed text[];
begin
  if pausing then
    with added as (
      insert into windlass.paused (type) select distinct t from unnest(types) t order by t on conflict do nothing returning type
    )
    select coalesce(array_agg(type), '{}') into changed from added;
  else
    with removed as (delete from windlass.paused where type = any (types) returning type)
    select coalesce(array_agg(type), '{}') into changed from removed;
  end if;
  -- If a type is listed twice, the first entry reports the previous state, and later ones report the new state.
  return query
  select
    'paused', t.n::integer, null::uuid[], null::text[],
    array[(case when row_number() over (partition by t.type order by t.n) = 1
      then (t.type = any (changed)) <> pausing else pausing end)::int::bigint],
    null::bytea[]
  from unnest(types) with ordinality t (type, n)
  order by t.n;
end
$$;
