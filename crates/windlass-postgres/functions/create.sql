-- Stores a new job of a chain, which waits for these stored chains.
create function windlass.insert_job_v1(
  now bigint, new windlass.new_v1, of_chain uuid, of_type text, at_position integer, chains uuid[]
) returns windlass.job language plpgsql as $$
declare
  stored windlass.job;
  failed uuid;
  waits boolean := false;
begin
  if cardinality(chains) > 0 then
    select
      (array_agg(c.id order by b.n) filter (
        where new.on_blocker_failure = 'fail' and c.closed_as in ('failed', 'cancelled')
      ))[1],
      coalesce(bool_or(c.closed_as is null or c.closed_as <> 'completed' and new.on_blocker_failure <> 'receive'), false)
    into failed, waits
    from unnest(chains) with ordinality b (chain, n)
    join windlass.chain c on c.id = b.chain;
  end if;
  insert into windlass.job (
    id, chain, position, type, chain_type, status, priority, due_at, max_attempts, fence, blockers, on_blocker_failure,
    created_at, closed_at, trace, error, input_codec, input
  ) values (
    new.id, of_chain, at_position, new.type, of_type,
    case when failed is not null then 'failed' when waits then 'blocked' else 'pending' end,
    new.priority, windlass.due_v1(now, new.due_at, new.due_after), new.max_attempts, now * 1024, cardinality(chains),
    new.on_blocker_failure, now, case when failed is not null then now end, new.trace,
    'a blocker chain did not complete: ' || failed, new.codec, new.input
  )
  on conflict do nothing
  returning * into stored;
  if cardinality(chains) > 0 and stored.id is not null then
    insert into windlass.blocker (job, position, chain, seq, resolved, waiting, needed, eager, trace)
    select
      stored.id, b.n, b.chain, stored.seq, r.resolved, stored.status = 'blocked' and not r.resolved, true,
      new.on_blocker_failure <> 'wait', b.trace
    from unnest(chains, new.blocker_traces) with ordinality b (chain, trace, n)
    join windlass.chain c on c.id = b.chain
    cross join lateral (
      select c.closed_as is not null and (c.closed_as = 'completed' or new.on_blocker_failure = 'receive') as resolved
    ) r;
    -- The snapshot may show a blocker as open that has closed since. The transaction that closed it did not see this job.
    if windlass.in_snapshot_v1() then
      perform windlass.mark_v1(now, chains);
    end if;
  end if;
  return stored;
end
$$;

-- Resolves blockers to stored chains. `named` are chains of the same command that already exist under their key, and
-- `meant` are the existing chains. Also returns the first blocker that is not stored.
create function windlass.resolve_blockers_v1(
  blockers uuid[], named uuid[], meant uuid[], out chains uuid[], out missing uuid
) language plpgsql as $$
begin
  if cardinality(blockers) = 0 then
    chains := blockers;
    return;
  end if;
  select array_agg(coalesce(a.meant, b.chain) order by b.n), (array_agg(b.chain order by b.n) filter (where c.id is null))[1]
  into chains, missing
  from unnest(blockers) with ordinality b (chain, n)
  left join unnest(named, meant) a (named, meant) on a.named = b.chain
  left join windlass.chain c on c.id = coalesce(a.meant, b.chain);
end
$$;

-- Starts a chain. Returns `new`, `existing` or `refused`.
create function windlass.create_chain_v1(now bigint, new windlass.new_v1, named uuid[], meant uuid[])
returns windlass.reply_v1 language plpgsql as $$
declare
  reply windlass.reply_v1;
  stored windlass.job;
  holder uuid;
  chains uuid[];
  missing uuid;
begin
  reply.part := 'created';
  reply.item := new.item;
  select l.* into stored from windlass.chain c join windlass.job l on l.id = c.latest where c.id = new.id;
  if found and stored.chain_type = new.type then
    reply.ids := array[stored.id, stored.chain];
    reply.words := array['new', stored.status];
    reply.numbers := array[stored.due_at, 1];
    return reply;
  end if;
  if found or exists (select from windlass.job where id = new.id) then
    reply.words := array['refused', 'id_taken'];
    return reply;
  end if;
  if new.key is not null then
    holder := windlass.holder_v1(now, new.type, new.key);
    if holder is null or holder = new.replaces then
      -- It is locked by now, unless its holder closed just now.
      perform from windlass.key where type = new.type and key = new.key for no key update skip locked;
      if not found and not windlass.lock_key_v1(now, new.type, new.key) then
        reply.words := array['busy'];
        return reply;
      end if;
      if not windlass.lock_pointed_v1(new.type, new.key) then
        reply.words := array['busy'];
        return reply;
      end if;
      holder := windlass.holder_v1(now, new.type, new.key);
    end if;
    if holder is not null and holder is distinct from new.replaces then
      select
        array[c.id], array['existing', l.status, l.type, l.output_codec, l.error, c.trace], array[l.output]
      into reply.ids, reply.words, reply.bytes
      from windlass.chain c
      join windlass.job l on l.id = c.latest
      where c.id = holder;
      return reply;
    end if;
  end if;
  select f.chains, f.missing into chains, missing from windlass.resolve_blockers_v1(new.blockers, named, meant) f;
  if missing is not null then
    reply.ids := array[missing];
    reply.words := array['refused', 'blocker_not_found'];
    return reply;
  end if;
  -- A blocker that was not stored when the command locked its blockers may be stored by now. Without the lock, it
  -- could close before this job is visible.
  if cardinality(windlass.lock_chains_v1(chains, true)) > 0 then
    reply.words := array['busy'];
    return reply;
  end if;

  stored := windlass.insert_job_v1(now, new, new.id, new.type, 0, chains);
  if stored.id is null then
    -- Another transaction has stored it in the meantime.
    return windlass.create_chain_v1(now, new, named, meant);
  end if;
  insert into windlass.chain (
    id, seq, type, latest, key, key_hold, key_window, keep_completed, keep_failed, keep_cancelled, created_at, trace,
    closed_at, closed_as, retain_until, leaves_at
  )
  select
    new.id, stored.seq, new.type, new.id, new.key, new.key_hold, new.key_window, new.keep_completed, new.keep_failed,
    new.keep_cancelled, now, new.chain_trace, stored.closed_at, case when stored.status = 'failed' then 'failed' end,
    windlass.later_v1(stored.closed_at, new.keep_failed),
    windlass.later_v1(stored.closed_at, greatest(new.keep_failed, 600000));
  if stored.closed_at is not null then
    insert into windlass.leaving (leaves_at, seq, chain) select c.leaves_at, c.seq, c.id from windlass.chain c where c.id = new.id;
  end if;
  if new.key is not null then
    update windlass.key set chain = new.id where type = new.type and key = new.key;
  end if;
  reply.ids := array[stored.id, stored.chain];
  reply.words := array['new', stored.status];
  reply.numbers := array[stored.due_at, 0];
  return reply;
end
$$;

-- Stores chains without blockers in one statement: those without a key, and those whose key is in `mine`. Returns the
-- ids and due times of the chains that did not exist. Joins up to a thousand new rows with themselves, for which an
-- index is useless.
create function windlass.store_plain_v1(
  now bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[],
  mine uuid[]
) returns windlass.reply_v1 language plpgsql set enable_nestloop = off set enable_hashjoin = on as $$
declare
  stored windlass.reply_v1;
begin
  with inserted as (
    insert into windlass.job as j (
      id, chain, position, type, chain_type, status, priority, due_at, max_attempts, fence, on_blocker_failure, created_at,
      trace, input_codec, input
    )
    select
      n.id, n.id, 0, n.type, n.type, 'pending', n.priority, windlass.due_v1(now, n.due_at, n.due_after), n.max_attempts,
      now * 1024, n.policy, now, n.trace, n.codec, n.input
    from unnest(
      ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keys
    ) n (id, type, codec, input, due_at, due_after, priority, max_attempts, policy, trace, key)
    where n.key is null or n.id in (select unnest(mine))
    on conflict do nothing
    returning j.id, j.seq, j.type, j.due_at
  ), chained as (
    insert into windlass.chain (
      id, seq, type, latest, key, key_hold, key_window, keep_completed, keep_failed, keep_cancelled, created_at, trace
    )
    select
      i.id, i.seq, i.type, i.id, n.key, n.key_hold, n.key_window, n.keep_completed, n.keep_failed, n.keep_cancelled, now,
      n.trace
    from inserted i
    join unnest(ids, keep_completed, keep_failed, keep_cancelled, chain_traces, keys, key_holds, key_windows) n (
      id, keep_completed, keep_failed, keep_cancelled, trace, key, key_hold, key_window
    ) on n.id = i.id
  )
  select 'stored', null, array_agg(i.id), null, array_agg(i.due_at), null into stored from inserted i;
  return stored;
end
$$;

-- Starts chains without keys and blockers, each with its own id.
create function windlass.create_plain_v1(
  given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[]
) returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '1s' set enable_seqscan = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  stored windlass.reply_v1;
  new windlass.new_v1;
  none text[];
begin
  stored := windlass.store_plain_v1(
    now, ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces,
    keep_completed, keep_failed, keep_cancelled, chain_traces, null, null, null, null
  );
  return next stored;
  if cardinality(stored.ids) = cardinality(ids) then
    return;
  end if;
  -- The others were stored before, or their id is taken.
  none := array_fill(null::text, array[cardinality(ids)]);
  foreach new in array windlass.new_jobs_v1(
    ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keep_completed,
    keep_failed, keep_cancelled, chain_traces, none, none, none::bigint[], none::uuid[], '{}', '{}', '{}'
  ) loop
    if new.id <> all (coalesce(stored.ids, '{}')) then
      return next windlass.create_chain_v1(now, new, '{}', '{}');
    end if;
  end loop;
end
$$;

-- Starts chains without blockers, each with its own id and, if any, its own key. If every key is free or held and no
-- id is taken, this needs a fixed number of statements. Otherwise all chains are started one by one, in order.
create function windlass.create_keyed_v1(
  given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[],
  replaces uuid[]
) returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '1s' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  keyed constant integer := cardinality(array_remove(keys, null));
  mine uuid[];
  held windlass.reply_v1[] := '{}';
  stored windlass.reply_v1;
begin
  perform set_config('lock_timeout', '10ms', true);
  begin
    if windlass.in_snapshot_v1() then
      raise exception using errcode = 'WL001', message = 'one by one';
    end if;
    mine := windlass.take_keys_v1(now, ids, types, keys, replaces);
    perform set_config('lock_timeout', '1s', true);
    if cardinality(mine) < keyed then
      held := array(select h from windlass.existing_v1(now, ids, types, keys, replaces, mine) h);
    end if;
    if cardinality(mine) + cardinality(held) = keyed then
      stored := windlass.store_plain_v1(
        now, ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces,
        keep_completed, keep_failed, keep_cancelled, chain_traces, keys, key_holds, key_windows, mine
      );
      if coalesce(cardinality(stored.ids), 0) + cardinality(held) = cardinality(ids) then
        return next stored;
        return query select (h).* from unnest(held) h;
        return;
      end if;
    end if;
    raise exception using errcode = 'WL001', message = 'one by one';
  exception when lock_not_available or deadlock_detected or sqlstate 'WL001' then
    perform set_config('lock_timeout', '1s', true);
  end;
  return query select * from windlass.create_v1(given, windlass.new_jobs_v1(
    ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keep_completed,
    keep_failed, keep_cancelled, chain_traces, keys, key_holds, key_windows, replaces, '{}', '{}', '{}'
  ));
end
$$;

-- Starts chains.
create function windlass.create_v1(given bigint, new_jobs windlass.new_v1[])
returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '1s' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  new windlass.new_v1;
  reply windlass.reply_v1;
  busy_keys integer[];
  blockers constant uuid[] := array(select distinct b from unnest(new_jobs) n, unnest(n.blockers) b);
  busy_chains uuid[];
  named uuid[] := '{}';
  meant uuid[] := '{}';
begin
  -- The batch is shared with other callers. The client retries items whose rows an open transaction has locked.
  perform set_config('lock_timeout', '20ms', true);
  busy_keys := windlass.lock_keys_v1(now, new_jobs);
  busy_chains := windlass.lock_chains_v1(blockers, true);
  perform set_config('lock_timeout', '1s', true);
  foreach new in array new_jobs loop
    if new.item = any (busy_keys) or new.blockers && busy_chains then
      reply := ('created', new.item, null, array['busy'], null, null);
      -- Chains that wait for it are busy too.
      busy_chains := busy_chains || new.id;
    else
      reply := windlass.create_chain_v1(now, new, named, meant);
      if reply.words[1] = 'busy' then
        busy_chains := busy_chains || new.id;
      elsif reply.words[1] = 'existing' and new.id = any (blockers) then
        perform set_config('lock_timeout', '20ms', true);
        if cardinality(windlass.lock_chains_v1(array[reply.ids[1]], true)) > 0 then
          -- It is about to close or to be deleted. Chains that wait for it are busy too.
          reply := ('created', new.item, null, array['busy'], null, null);
          busy_chains := busy_chains || new.id;
        else
          -- Chains that wait for it wait for the existing chain instead.
          named := named || new.id;
          meant := meant || reply.ids[1];
        end if;
        perform set_config('lock_timeout', '1s', true);
      end if;
    end if;
    return next reply;
  end loop;
  perform windlass.free_keys_v1(new_jobs);
  if cardinality(blockers) > 0 and windlass.in_snapshot_v1() then
    return query select 'deferred', null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[];
  end if;
end
$$;
