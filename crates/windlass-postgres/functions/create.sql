-- Raises the fences of new jobs above the largest fence of a deleted job, which may have had the same id and creation time. Call
-- this after the insert: the insert may have waited for a transaction that has deleted the former job.
create function windlass.raise_fences_v1(jobs uuid[]) returns void language sql as $$
  update windlass.job j set fence = pg_sequence_last_value('windlass.deleted_fence') + 1 where j.id = any (jobs)
$$;

-- Stores a new job, which waits for these stored chains: the first of a new chain, or the next one of the chain whose
-- first job is `first`.
create function windlass.insert_job_v1(
  now bigint, new windlass.new_v1, first windlass.job, at_position integer, chains uuid[]
) returns windlass.job language plpgsql as $$
declare
  stored windlass.job;
  failed uuid;
  waits boolean := false;
  how text;
  is_first constant boolean := at_position = 0;
begin
  if cardinality(chains) > 0 then
    select
      (array_agg(c.id order by b.n) filter (
        where new.on_blocker_failure = 'fail' and c.closed_as in ('failed', 'cancelled')
      ))[1],
      coalesce(bool_or(c.closed_as is null or c.closed_as <> 'completed' and new.on_blocker_failure <> 'receive'), false)
    into failed, waits
    from unnest(chains) with ordinality b (chain, n)
    cross join lateral (select c.id, c.closed_as from windlass.chain c where c.id = b.chain offset 0) c;
  end if;
  how := case when failed is not null then 'failed' when waits then 'blocked' else 'pending' end;
  insert into windlass.job (
    id, chain, position, type, chain_type, status, listed, priority, due_at, max_attempts, fence, blockers,
    on_blocker_failure, created_at, closed_at, trace, error, input_codec, input, chain_created_at, keep_completed,
    keep_failed, keep_cancelled, chain_trace, key, key_hold, key_window, chain_closed_at, closed_as, retain_until
  ) values (
    new.id, case when is_first then new.id else first.id end, at_position, new.type,
    case when is_first then new.type else first.chain_type end, how, windlass.listed_v1(how),
    new.priority, windlass.due_v1(now, new.due_at, new.due_after), new.max_attempts, now * 1024, cardinality(chains),
    new.on_blocker_failure, now, case when failed is not null then now end, new.trace,
    'a blocker chain did not complete: ' || failed, new.codec, new.input,
    case when not is_first then first.created_at end,
    case when is_first then new.keep_completed else first.keep_completed end,
    case when is_first then new.keep_failed else first.keep_failed end,
    case when is_first then new.keep_cancelled else first.keep_cancelled end,
    case when is_first then new.chain_trace else first.chain_trace end,
    case when is_first then new.key else first.key end,
    case when is_first then new.key_hold end, case when is_first then new.key_window end,
    case when is_first and failed is not null then now end, case when is_first and failed is not null then 'failed' end,
    case when is_first and failed is not null then windlass.later_v1(now, new.keep_failed) end
  )
  on conflict do nothing
  returning * into stored;
  if stored.id is null then
    return stored;
  end if;
  if pg_sequence_last_value('windlass.deleted_fence') > stored.fence then
    perform windlass.raise_fences_v1(array[stored.id]);
    select j.* into stored from windlass.job j where j.id = stored.id;
  end if;
  perform windlass.moved_v1(null, stored);
  if stored.chain_closed_at is not null then
    insert into windlass.leaving (leaves_at, chains)
    values (windlass.leaves_v1(stored.chain_closed_at, stored.retain_until), array[stored.id]);
  end if;
  if cardinality(chains) > 0 then
    insert into windlass.blocker (job, position, chain, seq, resolved, waiting, needed, eager, trace)
    select
      stored.id, b.n, b.chain, stored.seq, r.resolved, stored.status = 'blocked' and not r.resolved, true,
      new.on_blocker_failure <> 'wait', b.trace
    from unnest(chains, new.blocker_traces) with ordinality b (chain, trace, n)
    cross join lateral (select c.closed_as from windlass.chain c where c.id = b.chain offset 0) c
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
  left join lateral (select c.id from windlass.chain c where c.id = coalesce(a.meant, b.chain) offset 0) c on true;
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
  select l.* into stored from windlass.job l where l.id = (select c.latest from windlass.chain c where c.id = new.id);
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
      cross join lateral (select l.* from windlass.job l where l.id = c.latest offset 0) l
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

  stored := windlass.insert_job_v1(now, new, null, 0, chains);
  if stored.id is null then
    -- Another transaction has stored it in the meantime.
    return windlass.create_chain_v1(now, new, named, meant);
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
-- ids and due times of the chains that did not exist.
create function windlass.store_keyed_v1(
  now bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[],
  mine uuid[]
) returns windlass.reply_v1 language plpgsql as $$
declare
  stored windlass.reply_v1;
  base constant bigint := nextval('windlass.page') * 1024;
begin
  with inserted as (
    insert into windlass.job as j (
      id, chain, seq, type, chain_type, status, priority, due_at, max_attempts, fence, on_blocker_failure, created_at,
      trace, input_codec, input, keep_completed, keep_failed, keep_cancelled, chain_trace, key, key_hold, key_window
    )
    select
      n.id, n.id, base + n.n, n.type, n.type, 'pending', n.priority, windlass.due_v1(now, n.due_at, n.due_after),
      n.max_attempts, now * 1024, n.policy, now, n.trace, n.codec, n.input, n.keep_completed, n.keep_failed,
      n.keep_cancelled, n.chain_trace, n.key, n.key_hold, n.key_window
    from unnest(
      ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keep_completed,
      keep_failed, keep_cancelled, chain_traces, keys, key_holds, key_windows
    ) with ordinality n (
      id, type, codec, input, due_at, due_after, priority, max_attempts, policy, trace, keep_completed, keep_failed,
      keep_cancelled, chain_trace, key, key_hold, key_window, n
    )
    where n.key is null or n.id in (select unnest(mine))
    on conflict do nothing
    returning j.id, j.seq, j.type, j.due_at, j.priority, octet_length(j.input) as bytes
  ), made_ready as (
    insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
    select i.seq, i.due_at, i.id, i.priority, false, i.bytes, i.type from inserted i
  ), counted as (
    insert into windlass.tally (jobs, type, status) select count(*), i.type, 'pending' from inserted i group by i.type
  )
  select 'stored', null, array_agg(i.id), null, array_agg(i.due_at), null into stored from inserted i;
  if pg_sequence_last_value('windlass.deleted_fence') > now * 1024 then
    perform windlass.raise_fences_v1(stored.ids);
  end if;
  return stored;
end
$$;

-- Returns a column with a value for each of `items`. A column with equal values was passed as one value, or as none if
-- they are null.
create function windlass.column_v1(given anyarray, items integer) returns anyarray language plpgsql immutable as $$
begin
  if cardinality(given) = items then
    return given;
  end if;
  return array_fill(given[1], array[items]);
end
$$;

-- Starts chains without keys and blockers, each with its own id. A column with equal values, other than ids and inputs, has
-- one value, or none if they are null: most batches differ in nothing else. Returns the due times in order, or one due
-- time for all.
create function windlass.create_plain_v1(
  given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[]
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  items constant integer := cardinality(ids);
  base constant bigint := nextval('windlass.page') * 1024;
  every_limit constant boolean := cardinality(max_attempts) = items;
  every_trace constant boolean := cardinality(traces) = items;
  every_chain_trace constant boolean := cardinality(chain_traces) = items;
  one_type constant text := types[1];
  one_priority constant bigint := priorities[1];
  -- Null if the jobs are due at different times.
  due constant bigint := case
    when cardinality(due_at) <= 1 and cardinality(due_after) <= 1 then windlass.due_v1(now, due_at[1], due_after[1])
  end;
  one_limit constant bigint := max_attempts[1];
  one_policy constant text := on_blocker_failure[1];
  one_trace constant text := traces[1];
  one_codec constant text := codecs[1];
  one_completed constant bigint := keep_completed[1];
  one_failed constant bigint := keep_failed[1];
  one_cancelled constant bigint := keep_cancelled[1];
  one_chain_trace constant text := chain_traces[1];
  -- Whether the chains differ only in id and input.
  are_alike constant boolean := due is not null and (items = 1 or items not in (
    cardinality(types), cardinality(codecs), cardinality(priorities), cardinality(max_attempts), cardinality(on_blocker_failure),
    cardinality(traces), cardinality(keep_completed), cardinality(keep_failed), cardinality(keep_cancelled),
    cardinality(chain_traces)
  ));
  new windlass.new_v1;
  none text[];
begin
  begin
    if are_alike then
      -- Most batches. The general statements below take a tenth longer.
      insert into windlass.job (
        id, chain, seq, type, chain_type, status, priority, due_at, max_attempts, fence, on_blocker_failure, created_at,
        trace, input_codec, input, keep_completed, keep_failed, keep_cancelled, chain_trace
      )
      select
        n.id, n.id, base + n.n, one_type, one_type, 'pending', one_priority, due, one_limit, now * 1024, one_policy, now,
        one_trace, one_codec, n.input, one_completed, one_failed, one_cancelled, one_chain_trace
      from unnest(ids, inputs) with ordinality n (id, input, n);
      insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
      select base + n.n, due, n.id, one_priority, false, octet_length(n.input), one_type
      from unnest(ids, inputs) with ordinality n (id, input, n);
    else
      insert into windlass.job as j (
        id, chain, seq, type, chain_type, status, priority, due_at, max_attempts, fence, on_blocker_failure, created_at,
        trace, input_codec, input, keep_completed, keep_failed, keep_cancelled, chain_trace
      )
      select
        n.id, n.id, base + n.n, coalesce(n.type, one_type), coalesce(n.type, one_type), 'pending',
        coalesce(n.priority, one_priority), coalesce(due, windlass.due_v1(now, n.due_at, n.due_after)),
        case when every_limit then n.max_attempts else one_limit end, now * 1024,
        coalesce(n.policy, one_policy), now, case when every_trace then n.trace else one_trace end,
        coalesce(n.codec, one_codec), n.input, coalesce(n.keep_completed, one_completed),
        coalesce(n.keep_failed, one_failed), coalesce(n.keep_cancelled, one_cancelled),
        case when every_chain_trace then n.chain_trace else one_chain_trace end
      from unnest(
        ids, inputs, types, codecs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keep_completed,
        keep_failed, keep_cancelled, chain_traces
      ) with ordinality n (
        id, input, type, codec, due_at, due_after, priority, max_attempts, policy, trace, keep_completed, keep_failed,
        keep_cancelled, chain_trace, n
      );
      insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
      select
        base + n.n, coalesce(due, windlass.due_v1(now, n.due_at, n.due_after)), n.id, coalesce(n.priority, one_priority),
        false, octet_length(n.input), coalesce(n.type, one_type)
      from unnest(ids, inputs, types, due_at, due_after, priorities)
        with ordinality n (id, input, type, due_at, due_after, priority, n);
    end if;
    if pg_sequence_last_value('windlass.deleted_fence') > now * 1024 then
      perform windlass.raise_fences_v1(ids);
    end if;
    if cardinality(types) = 1 then
      insert into windlass.tally (jobs, type, status) values (items, one_type, 'pending');
    else
      insert into windlass.tally (jobs, type, status) select count(*), t, 'pending' from unnest(types) t group by t;
    end if;
    return query
    select 'all_stored', null::integer, null::uuid[], null::text[], case when due is not null then array[due] else array(
      select windlass.due_v1(now, n.due_at, n.due_after) from unnest(due_at, due_after) with ordinality n (due_at, due_after, n)
      order by n.n
    ) end, null::bytea[];
    return;
  exception when unique_violation then
    -- Some were stored before, or their id is taken.
    none := array_fill(null::text, array[items]);
  end;
  foreach new in array windlass.new_jobs_v1(
    ids, windlass.column_v1(types, items), windlass.column_v1(codecs, items), inputs, windlass.column_v1(due_at, items),
    windlass.column_v1(due_after, items), windlass.column_v1(priorities, items), windlass.column_v1(max_attempts, items),
    windlass.column_v1(on_blocker_failure, items), windlass.column_v1(traces, items),
    windlass.column_v1(keep_completed, items), windlass.column_v1(keep_failed, items),
    windlass.column_v1(keep_cancelled, items), windlass.column_v1(chain_traces, items), none, none, none::bigint[],
    none::uuid[], '{}', '{}', '{}'
  ) loop
    return next windlass.create_chain_v1(now, new, '{}', '{}');
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
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
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
      stored := windlass.store_keyed_v1(
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
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '1s' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
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
