-- Closes the current job of a chain and adds the next one. Returns the chain if it closed, or a refusal.
create function windlass.continue_chain_v1(
  now bigint, own windlass.job, new windlass.new_v1, named uuid[], meant uuid[], by_worker uuid, how_ended text,
  out refusal windlass.reply_v1, out next windlass.job, out closed windlass.reply_v1
) language plpgsql as $$
declare
  chains uuid[];
  missing uuid;
  waits boolean;
  first windlass.job;
begin
  if exists (select from windlass.job where id = new.id) then
    refusal.words := array['refused', 'id_taken'];
    return;
  end if;
  select f.chains, f.missing into chains, missing from windlass.resolve_blockers_v1(new.blockers, named, meant) f;
  if missing is not null then
    refusal.ids := array[missing];
    refusal.words := array['refused', 'blocker_not_found'];
    return;
  end if;
  -- A blocker that was not stored when the command locked its blockers may be stored by now.
  if cardinality(windlass.lock_chains_v1(chains, true)) > 0 then
    refusal.words := array['busy'];
    return;
  end if;
  waits := windlass.reaches_v1(chains, own.chain);
  if waits is null then
    refusal.words := array['busy'];
    return;
  elsif waits then
    select array[b.chain] into refusal.ids
    from unnest(chains) with ordinality b (chain, n)
    where windlass.reaches_v1(array[b.chain], own.chain)
    order by b.n
    limit 1;
    -- Null if the wait was resolved in between.
    refusal.words := case when refusal.ids is null then array['busy'] else array['refused', 'waits_for_itself'] end;
    return;
  end if;
  perform windlass.close_job_v1(now, own, 'completed', how_ended, null, null, null, by_worker);
  select * into first from windlass.job where id = own.chain;
  next := windlass.insert_job_v1(now, new, first, own.position + 1, chains);
  update windlass.job
  set latest = next.id, latest_position = next.position,
    trim_at = case when own.position > 0 and trim_at is null
      then windlass.later_v1(now, greatest(keep_completed, 600000)) else trim_at end
  where id = own.chain;
  if next.status = 'failed' then
    closed := windlass.close_chain_v1(now, own.chain, 'failed', null);
  end if;
end
$$;

-- Whether one of these chains waits, directly or through others, for `sought`, or would wait for it if it were
-- retried. Null if another transaction has locked a chain on the path.
--
-- The caller has locked its own chain for update. Every chain on the path is locked as if to attach to it, and the
-- search is repeated until it meets only locked chains. So of two commands that would each add one half of a cycle, one
-- waits for the other. In a snapshot, a chain on the path may have changed since; locking it in share mode fails then.
create function windlass.reaches_v1(chains uuid[], sought uuid) returns boolean language plpgsql as $$
declare
  nearby uuid[];
  in_snapshot constant boolean := windlass.in_snapshot_v1();
  held uuid[] := case when in_snapshot then '{}' else chains end;
  busy uuid[];
begin
  if cardinality(chains) = 0 then
    return false;
  end if;
  for tries in 1 .. 5 loop
    with recursive reached (chain) as (
      select unnest(chains)
      union
      select b.chain
      from reached r
      join windlass.chain c on c.id = any (array[r.chain])
      join windlass.job l on l.id = any (array[c.latest]) and l.status in ('blocked', 'failed', 'cancelled')
      join windlass.blocker b on b.job = any (array[l.id]) and (l.status <> 'blocked' or not b.resolved)
    )
    select array(select chain from reached limit 1000) into nearby;
    if sought = any (nearby) then
      return true;
    elsif nearby <@ held then
      return false;
    end if;
    -- A completed chain never waits again.
    busy := windlass.try_lock_v1(array(
      select c.id from windlass.chain c where c.id = any (nearby) and c.closed_as is distinct from 'completed'
    ), case when in_snapshot then 'share' else 'key share' end);
    if cardinality(busy) > 0 then
      return null;
    end if;
    held := held || nearby;
  end loop;
  return null;
end
$$;

-- Settles one attempt, without the chains that it carries. All rows it needs are locked. A refusal of the next job is
-- raised as an error, so that carried chains are rolled back with it.
create function windlass.apply_outcome_v1(
  now bigint, own windlass.job, item windlass.settlement_v1, next windlass.new_v1, named uuid[], meant uuid[]
) returns windlass.reply_v1[] language plpgsql as $$
declare
  reply windlass.reply_v1;
  continued record;
  goes_on boolean := false;
  closed windlass.reply_v1;
begin
  if own.cancel_requested and item.outcome not in ('complete', 'fail') then
    perform windlass.close_job_v1(
      now, own, 'cancelled', 'cancelled', coalesce(item.error, own.error), null, null, own.worker
    );
    closed := windlass.close_chain_v1(now, own.chain, 'cancelled', null);
  elsif item.outcome = 'complete' then
    perform windlass.close_job_v1(now, own, 'completed', 'completed', null, item.codec, item.output, own.worker);
    closed := windlass.close_chain_v1(now, own.chain, 'completed', item.retention);
  elsif item.outcome = 'continue' then
    continued := windlass.continue_chain_v1(now, own, next, named, meant, own.worker, 'continued');
    if (continued.refusal).words is not null then
      return array[continued.refusal];
    end if;
    goes_on := true;
    closed := continued.closed;
  elsif item.outcome = 'fail' or item.outcome = 'retry' and own.attempt >= own.max_attempts then
    perform windlass.close_job_v1(
      now, own, 'failed', case item.outcome when 'fail' then 'failed' else 'exhausted' end, item.error, null, null, own.worker
    );
    closed := windlass.close_chain_v1(now, own.chain, 'failed', item.retention);
  elsif item.outcome = 'release' then
    perform windlass.requeue_v1(now, own, own.due_at, null, 'released');
  else
    perform windlass.requeue_v1(
      now, own, windlass.due_v1(now, item.due_at, item.due_after), item.error,
      case item.outcome when 'retry' then 'retried' else 'rescheduled' end
    );
  end if;
  select 'settled', item.item, array[j.id, j.chain], array['applied', j.status], array[j.due_at], null
  into reply
  from windlass.job j
  where j.id = own.id;
  if goes_on then
    reply.ids := reply.ids || (continued.next).id;
    reply.words := reply.words || (continued.next).status;
    reply.numbers := reply.numbers || (continued.next).due_at;
  end if;
  if closed.part is null then
    return array[reply];
  end if;
  return array[reply, closed];
end
$$;

-- Returns why an attempt no longer holds its job, or that it was already settled with this outcome.
create function windlass.lost_v1(item windlass.settlement_v1, own windlass.job) returns windlass.reply_v1
language plpgsql as $$
declare
  how_ended text;
begin
  if own.id is null then
    return ('settled', item.item, null, array['lost', 'not_found'], null, null)::windlass.reply_v1;
  end if;
  if own.fence = item.fence and own.ended is not null then
    how_ended := own.ended;
  else
    select a.ended into how_ended from windlass.attempt a where a.job = own.id and a.fence = item.fence;
  end if;
  if how_ended = any (case item.outcome
    when 'complete' then array['completed'] when 'fail' then array['failed']
    when 'continue' then array['continued', 'cancelled'] when 'retry' then array['retried', 'exhausted', 'cancelled']
    when 'reschedule' then array['rescheduled', 'cancelled'] else array['released', 'cancelled']
  end) then
    return ('settled', item.item, array[own.id, own.chain], array['already_applied', own.status], array[own.due_at], null)::windlass.reply_v1;
  end if;
  return ('settled', item.item, null, array['lost', own.status], null, null)::windlass.reply_v1;
end
$$;

-- Creates the chains that a settlement carries. If a key is held, the id of the new chain refers to the existing
-- chain. Returns a refusal if one is refused; the caller then rolls back.
create function windlass.create_carried_v1(
  now bigint, carried windlass.new_v1[], stopping uuid, busy integer[],
  out replies windlass.reply_v1[], out named uuid[], out meant uuid[], out refusal windlass.reply_v1
) language plpgsql as $$
declare
  new windlass.new_v1;
  reply windlass.reply_v1;
begin
  replies := '{}';
  named := '{}';
  meant := '{}';
  foreach new in array carried loop
    if stopping is not null and new.replaces is not distinct from stopping then
      replies := replies || ('created', new.item, null, array['refused', 'cancel_requested'], null, null)::windlass.reply_v1;
      continue;
    end if;
    if new.item = any (busy) then
      refusal := ('created', new.item, null, array['busy'], null, null);
      return;
    end if;
    reply := windlass.create_chain_v1(now, new, named, meant);
    if reply.words[1] in ('refused', 'busy') then
      refusal := reply;
      return;
    end if;
    if reply.words[1] = 'existing' then
      if cardinality(windlass.lock_chains_v1(array[reply.ids[1]], true)) > 0 then
        refusal := ('created', new.item, null, array['busy'], null, null);
        return;
      end if;
      named := named || new.id;
      meant := meant || reply.ids[1];
    end if;
    replies := replies || reply;
  end loop;
end
$$;

-- Settles one attempt with the chains that it carries, completely or not at all.
create function windlass.settle_one_v1(
  now bigint, own windlass.job, item windlass.settlement_v1, carried windlass.new_v1[], next windlass.new_v1,
  stopping uuid, busy integer[]
) returns windlass.reply_v1[] language plpgsql as $$
declare
  created record;
  reply windlass.reply_v1;
  applied windlass.reply_v1[];
begin
  select * into created from windlass.create_carried_v1(now, carried, stopping, busy);
  reply := created.refusal;
  if reply.part is not null then
    raise exception using errcode = 'WL001', message = 'a carried chain is refused';
  end if;
  applied := windlass.apply_outcome_v1(now, own, item, next, created.named, created.meant);
  reply := applied[1];
  if reply.part is null then
    raise exception using errcode = 'WL001', message = 'the next job is refused';
  end if;
  return applied || created.replies;
exception when sqlstate 'WL001' then
  return array[('settled', item.item, reply.ids, reply.words, null, null)::windlass.reply_v1];
end
$$;

-- Completes jobs that carry nothing, each listed once, sorted by id. If all have the same codec, output and retention, these
-- are passed once. Returns one row: ids of jobs and of their chains; types of chains and of jobs, traces; due times and
-- creation times.
--
-- Waits briefly for locked rows. If one stays locked, completes nothing: the caller then settles item by item and
-- skips it.
--
-- Reads the columns for the reply and for the other tables while it locks the jobs, and writes each other table with a separate
-- statement. One statement that updated the jobs and fed the other inserts took a tenth longer.
create function windlass.complete_plain_v1(
  now bigint, jobs uuid[], fences bigint[], codecs text[], outputs bytea[], retentions bigint[]
) returns windlass.reply_v1 language plpgsql as $$
declare
  completed windlass.reply_v1;
  places tid[];
  held uuid[];
  chains uuid[];
  types text[];
  waited uuid[];
  later uuid[];
  marked uuid[];
  keep_min bigint;
  keep_max bigint;
begin
  -- The update alone would not wait for transactions that attach jobs to these chains, see `lock.sql`. A job that the
  -- attempt no longer holds may be pending, and must not be locked here.
  select
    array_agg(j.ctid), array_agg(j.id), array_agg(j.chain), array_agg(j.type), array_agg(j.chain_type) || array_agg(j.type) || array_agg(j.chain_trace),
    array_agg(j.due_at) || array_agg(j.created_at), array_agg(j.id) filter (where j.blockers > 0),
    array_agg(j.id) filter (where j.position > 0), min(j.keep_completed), max(j.keep_completed)
  into places, held, chains, types, completed.words, completed.numbers, waited, later, keep_min, keep_max
  from unnest(jobs, fences) i (job, fence)
  cross join lateral (
    select
      j.ctid, j.id, j.chain, j.type, j.chain_type, j.chain_trace, j.due_at, coalesce(j.chain_created_at, j.created_at) as created_at,
      j.blockers, j.position, j.keep_completed
    from windlass.job j
    where j.id = i.job and j.fence = i.fence and j.status = 'running'
    for update
  ) j;
  if held is null then
    return null;
  end if;
  -- The locked rows stay in their places, so no index lookup is needed.
  if cardinality(outputs) = 1 then
    update windlass.job j
    set status = 'completed', output_codec = codecs[1], output = outputs[1], error = null, closed_at = now,
      closed_by = j.worker, version = j.version + 1, lease_until = null, request = null, ended = 'completed',
      chain_closed_at = case when j.position = 0 then now end, closed_as = case when j.position = 0 then 'completed' end,
      retain_until = case when j.position = 0 then windlass.later_v1(now, coalesce(retentions[1], j.keep_completed)) end
    where j.ctid = any (places);
    retentions := windlass.column_v1(retentions, cardinality(jobs));
  else
    if cardinality(held) < cardinality(jobs) then
      select array_agg(i.codec order by i.job), array_agg(i.output order by i.job), array_agg(i.retention order by i.job)
      into codecs, outputs, retentions
      from unnest(jobs, codecs, outputs, retentions) i (job, codec, output, retention)
      where i.job = any (held);
      jobs := held;
    end if;
    update windlass.job j
    set status = 'completed', output_codec = i.codec, output = i.output, error = null, closed_at = now,
      closed_by = j.worker, version = j.version + 1, lease_until = null, request = null, ended = 'completed',
      chain_closed_at = case when j.position = 0 then now end, closed_as = case when j.position = 0 then 'completed' end,
      retain_until = case when j.position = 0 then windlass.later_v1(now, coalesce(i.retention, j.keep_completed)) end
    from unnest(places, jobs, codecs, outputs, retentions) i (place, job, codec, output, retention)
    where j.ctid = i.place and j.id = i.job;
  end if;
  if later is null and cardinality(outputs) = 1 and (keep_min = keep_max or retentions[1] is not null) then
    insert into windlass.leaving (leaves_at, chains)
    values (windlass.leaves_v1(now, windlass.later_v1(now, coalesce(retentions[1], keep_min))), held);
  else
    insert into windlass.leaving (leaves_at, chains)
    select windlass.leaves_v1(now, j.retain_until), array_agg(j.id)
    from (select j.id, j.retain_until from windlass.job j where j.id = any (held) and j.position = 0 offset 0) j
    group by 1;
  end if;
  if types[1] = all (types) then
    insert into windlass.tally (jobs, type, status)
    values (cardinality(held), types[1], 'completed'), (-cardinality(held), types[1], 'running');
  else
    insert into windlass.tally (jobs, type, status)
    select c.jobs * m.sign, c.type, m.status
    from (select count(*) as jobs, t.type from unnest(types) t (type) group by t.type) c
    cross join (values (1, 'completed'), (-1, 'running')) m (sign, status);
  end if;
  if later is not null then
    perform windlass.close_longer_v1(now, later, jobs, retentions);
  end if;
  -- The chains are locked, so at read committed every dependent has committed and is visible. A snapshot may hide
  -- some.
  marked := case when windlass.in_snapshot_v1() then chains else array(
    select distinct b.chain from windlass.blocker b where b.chain = any (chains) and b.waiting
  ) end;
  if cardinality(marked) > 0 then
    perform windlass.mark_v1(now, marked);
  end if;
  if waited is not null then
    update windlass.blocker set waiting = false, needed = false where job = any (waited);
  end if;
  completed.part := 'completed';
  completed.ids := held || chains;
  return completed;
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;

-- Completes one job that carries nothing and is the first of its chain, as `complete_plain_v1` does. Statements on one row
-- take a third less time than those on arrays. Most transactions of handlers complete one job.
--
-- Returns null, and locks nothing, if the job is locked, belongs to another attempt, or is not the first. A statement can also
-- wait for a lock on a table, for example while another session adds a page to it.
create function windlass.complete_one_v1(
  now bigint, of_job uuid, of_fence bigint, codec text, result bytea, retention bigint
) returns windlass.reply_v1 language plpgsql as $$
declare
  completed windlass.reply_v1;
  own record;
  until bigint;
begin
  -- An open transaction that attaches a job to the chain holds a lock that conflicts with this one, see `lock.sql`. The row is
  -- skipped then.
  select j.ctid as place, j.type, j.chain_type, j.chain_trace, j.due_at, j.blockers, j.keep_completed, j.created_at into own
  from windlass.job j
  where j.id = of_job and j.fence = of_fence and j.status = 'running' and j.position = 0
  for update skip locked;
  if not found then
    return null;
  end if;
  until := windlass.later_v1(now, coalesce(retention, own.keep_completed));
  update windlass.job j
  set status = 'completed', output_codec = codec, output = result, error = null, closed_at = now, closed_by = j.worker,
    version = j.version + 1, lease_until = null, request = null, ended = 'completed', chain_closed_at = now,
    closed_as = 'completed', retain_until = until
  where j.ctid = own.place;
  insert into windlass.leaving (leaves_at, chains) values (windlass.leaves_v1(now, until), array[of_job]);
  insert into windlass.tally (jobs, type, status) values (1, own.type, 'completed'), (-1, own.type, 'running');
  if windlass.in_snapshot_v1() or exists (select from windlass.blocker b where b.chain = of_job and b.waiting) then
    perform windlass.mark_v1(now, array[of_job]);
  end if;
  if own.blockers > 0 then
    update windlass.blocker set waiting = false, needed = false where job = of_job;
  end if;
  completed.part := 'completed';
  completed.ids := array[of_job, of_job];
  completed.words := array[own.chain_type, own.type, own.chain_trace];
  completed.numbers := array[own.due_at, own.created_at];
  return completed;
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;

-- Closes the chains of these completed jobs, which are not the first of their chain.
create function windlass.close_longer_v1(now bigint, later uuid[], jobs uuid[], retentions bigint[])
returns void language plpgsql as $$
begin
  perform
  from (select j.chain from windlass.job j where j.id = any (later) order by j.chain) j
  cross join lateral (select from windlass.job c where c.id = j.chain for update) c;
  with closed as (
    update windlass.job c
    set chain_closed_at = now, closed_as = 'completed', trim_at = null,
      retain_until = windlass.later_v1(now, coalesce(i.retention, c.keep_completed))
    from unnest(jobs, retentions) i (job, retention)
    join windlass.job j on j.id = any (array[i.job])
    where i.job = any (later) and c.id = any (array[j.chain])
    returning c.id, c.retain_until
  )
  insert into windlass.leaving (leaves_at, chains)
  select windlass.leaves_v1(now, c.retain_until), array_agg(c.id) from closed c group by 1;
end
$$;

-- Completes jobs that carry nothing, passed as to `complete_plain_v1`. Those that cannot be completed together are settled
-- one by one.
create function windlass.settle_plain_v1(
  given bigint, jobs uuid[], fences bigint[], codecs text[], outputs bytea[], retentions bigint[]
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '20ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  count constant integer := cardinality(jobs);
  completed windlass.reply_v1;
  none text[];
begin
  if count = 1 then
    completed := windlass.complete_one_v1(now, jobs[1], fences[1], codecs[1], outputs[1], retentions[1]);
  end if;
  if completed.part is null then
    completed := windlass.complete_plain_v1(now, jobs, fences, codecs, outputs, retentions);
  end if;
  if completed.part is not null then
    return next completed;
  end if;
  if completed.part is null or cardinality(completed.ids) < 2 * count then
    none := array_fill(null::text, array[count]);
    return query
    select (r).*
    from windlass.settle_items_v1(now, array(
      select i
      from unnest(windlass.settlements_v1(
        jobs, fences, array_fill('complete'::text, array[count]), windlass.column_v1(codecs, count),
        windlass.column_v1(outputs, count), none, none::bigint[], none::bigint[], windlass.column_v1(retentions, count),
        array_fill(0::bigint, array[count]), array_fill(0::bigint, array[count]), array_fill(0::bigint, array[count])
      )) i
      where i.job <> all (coalesce(completed.ids, '{}'))
    ), '{}', 1000) s, unnest(s.replies) r;
  elsif windlass.in_snapshot_v1() or exists (select from windlass.ripple) then
    return query select (r).* from windlass.ripple_v1(now, true, 1000) s, unnest(s.replies) r;
  end if;
end
$$;

-- Settles attempts and processes the consequences.
create function windlass.settle_items_v1(
  now bigint, items windlass.settlement_v1[], new_jobs windlass.new_v1[], inout left_over integer,
  out replies windlass.reply_v1[]
) language plpgsql as $$
declare
  item windlass.settlement_v1;
  own windlass.job;
  carried windlass.new_v1[];
  next windlass.new_v1;
  busy_jobs uuid[];
  busy_chains uuid[];
  busy_new_jobs integer[];
  jobs uuid[] := array(select i.job from unnest(items) i);
  reply windlass.reply_v1;
  applied windlass.reply_v1[];
  rippled windlass.reply_v1[];
begin
  replies := '{}';
  busy_jobs := windlass.lock_jobs_v1(jobs);
  busy_new_jobs := windlass.lock_keys_v1(now, new_jobs);
  busy_chains := windlass.lock_chains_v1(array(
    select distinct j.chain
    from unnest(items) i
    join windlass.job j on j.id = any (array[i.job]) and j.fence = i.fence and j.status = 'running'
    where i.outcome in ('complete', 'continue', 'fail') or j.cancel_requested or i.outcome = 'retry' and j.attempt >= j.max_attempts
  ), false);
  if cardinality(new_jobs) > 0 then
    busy_new_jobs := busy_new_jobs || windlass.lock_blockers_v1(new_jobs);
  end if;
  foreach item in array items loop
    if item.job = any (busy_jobs) then
      replies := replies || ('settled', item.item, null, array['busy'], null, null)::windlass.reply_v1;
      continue;
    end if;
    select * into own from windlass.job where id = item.job;
    if own.status is distinct from 'running' or own.fence <> item.fence then
      replies := replies || windlass.lost_v1(item, own);
    elsif item.invalid then
      replies := replies || ('settled', item.item, null, array['refused', 'invalid'], null, null)::windlass.reply_v1;
    elsif own.chain = any (busy_chains) and (
      item.outcome in ('complete', 'continue', 'fail') or own.cancel_requested or item.outcome = 'retry' and own.attempt >= own.max_attempts
    ) then
      replies := replies || ('settled', item.item, null, array['busy'], null, null)::windlass.reply_v1;
    elsif item.carried = 0 and item.outcome <> 'continue' or own.cancel_requested and item.outcome = 'continue' then
      replies := replies || windlass.apply_outcome_v1(now, own, item, null, '{}', '{}');
    else
      carried := new_jobs[item.created + 1 : item.created + item.carried];
      next := case when item.outcome = 'continue' then new_jobs[item.created + item.carried + 1] end;
      if next.item = any (busy_new_jobs) then
        replies := replies || ('settled', item.item, null, array['busy'], null, null)::windlass.reply_v1;
      elsif item.carried = 0 then
        -- A next job is refused before anything is written, so no subtransaction is needed.
        applied := windlass.apply_outcome_v1(now, own, item, next, '{}', '{}');
        reply := applied[1];
        if reply.part is null then
          applied := array[('settled', item.item, reply.ids, reply.words, null, null)::windlass.reply_v1];
        end if;
        replies := replies || applied;
      else
        replies := replies || windlass.settle_one_v1(
          now, own, item, carried, next, case when own.cancel_requested then own.chain end, busy_new_jobs
        );
      end if;
    end if;
  end loop;
  if cardinality(new_jobs) > 0 then
    perform windlass.free_keys_v1(new_jobs);
  end if;
  select r.left_over, r.replies into left_over, rippled from windlass.ripple_v1(now, true, left_over) r;
  replies := replies || rippled;
end
$$;

create function windlass.settle_v1(given bigint, items windlass.settlement_v1[], new_jobs windlass.new_v1[])
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '20ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
begin
  return query select (r).*
  from windlass.settle_items_v1(windlass.time_v1(given), items, new_jobs, 1000) s, unnest(s.replies) r;
end
$$;
