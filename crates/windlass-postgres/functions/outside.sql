-- Applies the steps of a completion from outside. `items` are the steps, in the form of settlements.
create function windlass.apply_steps_v1(
  now bigint, by_request uuid, own windlass.job, items windlass.settlement_v1[], new_jobs windlass.new_v1[],
  busy integer[]
) returns windlass.reply_v1[] language plpgsql as $$
declare
  item windlass.settlement_v1;
  new windlass.new_v1;
  carried windlass.new_v1[];
  current_job windlass.job := own;
  created record;
  continued record;
  reply windlass.reply_v1;
  replies windlass.reply_v1[] := '{}';
  how_ended text;
  stopping uuid;
  how text;
begin
  foreach item in array items loop
    how_ended := case when current_job.status = 'running' then 'displaced' end;
    stopping := case when current_job.cancel_requested then current_job.chain end;
    update windlass.job set outside = by_request where id = current_job.id;
    -- A chain that was asked to stop does not continue, and the chains that the step carries are not created.
    carried := new_jobs[item.created + 1 : item.created + item.carried];
    if item.outcome = 'continue' and stopping is not null then
      carried := '{}';
    end if;
    select * into created from windlass.create_carried_v1(now, carried, stopping, busy);
    reply := created.refusal;
    if reply.part is not null then
      raise exception using errcode = 'WL001', message = 'a carried chain is refused';
    end if;
    replies := replies || created.replies;
    if item.outcome = 'continue' and stopping is null then
      new := new_jobs[item.created + item.carried + 1];
      if new.item = any (busy) then
        reply := ('created', new.item, null, array['busy'], null, null);
        raise exception using errcode = 'WL001', message = 'the next job waits for a chain that another transaction has locked';
      end if;
      continued := windlass.continue_chain_v1(now, current_job, new, created.named, created.meant, null, how_ended);
      reply := continued.refusal;
      if reply.words is not null then
        raise exception using errcode = 'WL001', message = 'the next job is refused';
      end if;
      current_job := continued.next;
      reply := continued.closed;
      if reply.part is not null then
        replies := replies || reply;
      end if;
      continue;
    end if;
    how := case item.outcome when 'continue' then 'cancelled' when 'complete' then 'completed' else 'failed' end;
    perform windlass.close_job_v1(
      now, current_job, how, how_ended,
      case item.outcome when 'continue' then current_job.error else item.error end, item.codec, item.output, null
    );
    replies := replies || windlass.close_chain_v1(now, current_job.chain, how, item.retention);
    exit;
  end loop;
  select 'outside', null, array[j.id, j.chain, case when own.status = 'running' then own.worker end],
    array['applied', j.status], array[j.due_at], null
  into reply
  from windlass.job j
  where j.id = current_job.id;
  return replies || reply;
exception when sqlstate 'WL001' then
  return array[('outside', null, reply.ids, reply.words, null, null)::windlass.reply_v1];
end
$$;

-- Ends a job without a worker.
create function windlass.complete_from_outside_v1(
  given bigint, by_request uuid, wanted uuid, seen_version bigint, invalid boolean, items windlass.settlement_v1[],
  new_jobs windlass.new_v1[]
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  own windlass.job;
  busy integer[];
  replies windlass.reply_v1[];
  words text[];
begin
  busy := case when cardinality(windlass.lock_jobs_v1(array[wanted])) > 0 then null else '{}' end;
  select * into own from windlass.job where id = wanted;
  words := case
    when own.id is null then array['not_found']
    when busy is null then array['busy']
    when own.outside = by_request then array['already_applied']
    when own.status not in ('blocked', 'pending', 'running') or own.version <> seen_version then array['changed', own.status]
    when invalid then array['refused', 'invalid']
  end;
  if words is null then
    busy := windlass.lock_keys_v1(now, new_jobs);
    if cardinality(windlass.lock_chains_v1(array[own.chain], false)) > 0 then
      words := array['busy'];
    end if;
  end if;
  if words is not null then
    return query select 'outside', null::integer, null::uuid[], words, array[own.version], null::bytea[];
    return;
  end if;
  busy := busy || windlass.lock_blockers_v1(new_jobs);
  replies := windlass.apply_steps_v1(now, by_request, own, items, new_jobs, busy);
  delete from windlass.key k using unnest(new_jobs) n where k.type = any (array[n.type]) and k.key = n.key and k.chain is null;
  return query select (r).* from unnest(replies) r;
  return query select (r).* from windlass.ripple_v1(now, true, 1000) s, unnest(s.replies) r;
end
$$;
