-- Closes a chain whose latest job has just been closed. `ripple_v1` resolves the jobs that wait for it.
create function windlass.close_chain_v1(now bigint, of_chain uuid, how text, retention bigint)
returns windlass.reply_v1 language plpgsql as $$
declare
  reply windlass.reply_v1;
begin
  with closed as (
    update windlass.chain c
    set closed_at = now,
      closed_as = how,
      retain_until = windlass.later_v1(now, coalesce(
        retention, case how when 'completed' then c.keep_completed when 'failed' then c.keep_failed else c.keep_cancelled end
      )),
      trim_at = null
    where c.id = of_chain
    returning c.id, c.latest, c.closed_at, c.retain_until, c.type, c.trace, c.created_at
  ), left_to_expire as (
    -- A step from outside may close a chain that the previous step has already closed. It then has two rows.
    insert into windlass.leaving (leaves_at, chains)
    select windlass.leaves_v1(c.closed_at, c.retain_until), array[c.id] from closed c
  )
  select 'closed', null, array[c.id, c.latest], array[c.type, null, how, null, c.trace], array[c.created_at], null
  into reply
  from closed c;
  -- Read in another statement: if the chain has one job, both are the same row.
  select array[reply.words[1], l.type, how, l.error, reply.words[5]] into reply.words
  from windlass.job l
  where l.id = reply.ids[2];
  -- The chain is locked, so at read committed every dependent has committed and is visible. A snapshot may hide some.
  if windlass.in_snapshot_v1() or exists (
    select from windlass.blocker b where b.chain = of_chain and b.waiting and (b.eager or how = 'completed')
  ) then
    perform windlass.mark_v1(now, array[of_chain]);
  end if;
  return reply;
end
$$;

-- Closes a job. `output` is set only if it completed.
create function windlass.close_job_v1(
  now bigint, own windlass.job, how text, how_ended text, new_error text, codec text, result bytea, by_worker uuid
) returns void language plpgsql as $$
declare
  closed windlass.job;
begin
  update windlass.job
  set status = how, listed = windlass.listed_v1(how), output_codec = codec, output = result, error = new_error,
    closed_at = now, closed_by = by_worker, version = version + 1, lease_until = null, request = null, ended = how_ended
  where id = own.id
  returning * into closed;
  perform windlass.moved_v1(own, closed);
  if own.blockers > 0 then
    -- A failed job may be retried, and then needs its blockers.
    update windlass.blocker
    set waiting = false, needed = how = 'failed'
    where job = own.id and (waiting or needed <> (how = 'failed'));
  end if;
end
$$;

-- Adds the running attempt of a job to its history, ended now. Drops the oldest entry if there are too many.
create function windlass.record_attempt_v1(own windlass.job, at_time bigint, how_ended text, its_error text)
returns void language plpgsql as $$
begin
  insert into windlass.attempt (job, fence, attempt, worker, worker_name, started_at, ended_at, ended, error)
  values (own.id, own.fence, own.attempt, own.worker, own.worker_name, own.started_at, at_time, how_ended, its_error)
  on conflict do nothing;
  if own.version > 30 then
    delete from windlass.attempt
    where job = own.id and fence <= (
      select fence from windlass.attempt where job = own.id order by fence desc offset 30 limit 1
    );
  end if;
end
$$;

-- Requeues a running job. Only retries and reaped leases count as attempts.
create function windlass.requeue_v1(now bigint, own windlass.job, due bigint, new_error text, how_ended text)
returns void language plpgsql as $$
declare
  queued windlass.job;
begin
  perform windlass.record_attempt_v1(own, now, how_ended, new_error);
  update windlass.job
  set status = 'pending', due_at = due, error = coalesce(new_error, error), version = version + 1, lease_until = null,
    request = null, attempt = attempt - case when how_ended in ('rescheduled', 'released') then 1 else 0 end
  where id = own.id
  returning * into queued;
  perform windlass.moved_v1(own, queued);
end
$$;

-- Updates when the oldest inner job of an open chain may be removed.
create function windlass.set_trim_v1(of_chain uuid) returns void language sql as $$
  update windlass.chain c
  set trim_at = (
    select windlass.later_v1(j.closed_at, greatest(c.keep_completed, 600000))
    from windlass.job j
    where j.chain = c.id and j.position > 0 and j.position < c.latest_position
    order by j.position
    limit 1
  )
  where c.id = of_chain and c.closed_at is null
$$;
