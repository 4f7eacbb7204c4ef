-- What follows from the end of chains: waits are resolved, jobs unblocked or failed.
--
-- A closed chain has a mark until the last job that waits for it is resolved. Whoever works on the mark holds the chain's
-- row, and the row of each job that it resolves; both are skipped where somebody else has them, and the mark stays. A job
-- is therefore looked at by one at a time, who sees what all before have resolved: whatever the overlap, the last one
-- finds no wait left.

-- Locks jobs that wait. Those who end blockers at once wait for each other for a moment, in one order; a transaction that
-- stays open is left behind.
create function windlass.lock_waiting_v1(wanted uuid[], patient boolean) returns uuid[] language plpgsql
set lock_timeout = '250ms'
as $$
declare
  locked uuid[];
begin
  if patient then
    begin
      locked := array(select id from windlass.job where id = any (wanted) order by id for no key update);
      return locked;
    exception when lock_not_available or deadlock_detected then
      null;
    end;
  end if;
  return array(select id from windlass.job where id = any (wanted) order by id for no key update skip locked);
end
$$;

-- Resolves the waits of these locked jobs for a chain that has closed.
create function windlass.resolve_v1(now bigint, of_chain uuid, how text, jobs uuid[])
returns windlass.reply_v1[] language plpgsql as $$
declare
  own windlass.job;
  replies windlass.reply_v1[] := '{}';
  failing uuid[] := '{}';
  busy uuid[];
begin
  if how <> 'completed' then
    failing := array(select id from windlass.job where id = any (jobs) and status is not distinct from 'blocked' and on_blocker_failure = 'fail');
    busy := windlass.lock_chains_v1(array(select j.chain from windlass.job j where j.id = any (failing)), false);
    for own in
      select * from windlass.job where id = any (failing) and chain <> all (busy) and status is not distinct from 'blocked' order by seq
    loop
      perform windlass.close_job_v1(
        now, own, 'failed', own.ended, 'a blocker chain did not complete: ' || of_chain, own.output_codec, own.output, own.closed_by
      );
      replies := replies || windlass.close_chain_v1(now, own.chain, 'failed', null);
    end loop;
  end if;
  update windlass.blocker
  set resolved = true, waiting = false
  where chain = of_chain and waiting and job = any (jobs) and job <> all (failing);
  with unblocked as (
    update windlass.job j
    set status = 'pending', due_at = greatest(due_at, now), version = version + 1
    where j.id = any (jobs) and j.id <> all (failing) and j.status is not distinct from 'blocked'
      and not exists (select from windlass.blocker b where b.job = j.id and b.waiting)
    returning j.*
  )
  select replies || array_agg((
    'unblocked', null, array[u.id, u.chain],
    array[u.status, u.type, u.chain_type] || array(select b.trace from windlass.blocker b where b.job = u.id order by b.position),
    array[u.due_at], null
  )::windlass.reply_v1 order by u.seq)
  into replies
  from unblocked u;
  return replies;
end
$$;

-- Goes on with all marks, for as many jobs as the command may still resolve. `patient` waits a moment for jobs that
-- somebody else has, where the mark is this command's own: a row that stays locked does not delay every later one.
--
-- The chain's row is locked before its marks and its dependents are looked for, each by a statement of its own. Who left a
-- mark had the row locked until the commit, so that mark and dependents are seen together; only the marks that were seen
-- are removed.
create function windlass.ripple_v1(
  now bigint, patient boolean, inout left_over integer, out replies windlass.reply_v1[]
) language plpgsql as $$
declare
  ended record;
  marks bigint[];
  jobs uuid[];
  locked uuid[];
  passed uuid[] := '{}';
begin
  replies := '{}';
  if windlass.in_snapshot_v1() then
    -- Not even a look for marks: serializable transactions that look for each other's marks conflict.
    replies := array[('deferred', null, null, null, null, null)::windlass.reply_v1];
    return;
  elsif not exists (select from windlass.ripple) then
    return;
  end if;
  loop
    select c.id, c.closed_as, m.since into ended
    from windlass.ripple m
    join windlass.chain c on c.id = m.chain
    where c.id <> all (passed)
    order by m.since, m.seq
    limit 1
    for no key update of c skip locked;
    exit when not found;
    marks := array(select m.id from windlass.ripple m where m.chain = ended.id);
    jobs := array(
      select b.job
      from windlass.blocker b
      where b.chain = ended.id and b.waiting and (b.eager and ended.closed_as is not null or ended.closed_as = 'completed')
      group by b.job, b.seq
      order by b.seq
      limit left_over
    );
    if cardinality(jobs) > 0 then
      locked := windlass.lock_waiting_v1(jobs, patient and ended.since = now);
      left_over := left_over - cardinality(locked);
      replies := replies || windlass.resolve_v1(now, ended.id, ended.closed_as, locked);
    end if;
    if exists (
      select from windlass.blocker b
      where b.chain = ended.id and b.waiting and (b.eager and ended.closed_as is not null or ended.closed_as = 'completed')
    ) then
      exit when left_over <= 0;
      passed := passed || ended.id;
    else
      delete from windlass.ripple m where m.chain = ended.id and m.id = any (marks);
    end if;
  end loop;
  -- What is left is another transaction's at the moment.
  if left_over > 0 and exists (select from windlass.ripple) then
    replies := replies || ('deferred', null, null, null, null, null)::windlass.reply_v1;
  end if;
end
$$;
