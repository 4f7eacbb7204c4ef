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

-- Removes marks that no job waits for: their chain is open, or its dependents are resolved. As many as one command may.
--
-- This and `ripple_v1` lock the chain's row before they look for dependents, with a new statement. The transaction that left
-- a mark held that lock until its commit, so the mark and its dependents become visible together. Only the marks that were
-- seen before the look are removed.
create function windlass.sweep_v1(now bigint) returns void language plpgsql as $$
declare
  marks bigint[];
begin
  marks := array(
    select m.id
    from windlass.ripple m
    join windlass.chain c on c.id = m.chain
    where m.since < now
    order by m.since, m.seq
    limit 1000
    for no key update of c skip locked
  );
  delete from windlass.ripple m using windlass.chain c
  where m.id = any (marks) and c.id = m.chain and (c.closed_as is null or not exists (
    select from windlass.blocker b where b.chain = c.id and b.waiting and (b.eager or c.closed_as = 'completed')
  ));
end
$$;

-- Goes on with all marks, for as many jobs as the command may still resolve. `patient` waits a moment for jobs that another
-- transaction holds, where the mark is this command's own: a row that stays locked does not delay every later command.
--
-- The reply says `deferred` if waits are left that a later command could resolve. A patient command speaks of its own marks
-- only.
create function windlass.ripple_v1(
  now bigint, patient boolean, inout left_over integer, out replies windlass.reply_v1[]
) language plpgsql as $$
declare
  ended record;
  marks bigint[];
  jobs uuid[];
  locked uuid[];
  passed uuid[] := '{}';
  steps integer := 1000;
  from_since bigint := 0;
  from_seq bigint := 0;
begin
  replies := '{}';
  if windlass.in_snapshot_v1() then
    -- Do not even look for marks: serializable transactions that look for each other's marks conflict.
    replies := array[('deferred', null, null, null, null, null)::windlass.reply_v1];
    return;
  elsif not exists (select from windlass.ripple) then
    return;
  end if;
  if exists (select from windlass.ripple m where m.since < now) then
    perform windlass.sweep_v1(now);
  end if;
  while left_over > 0 and steps > 0 loop
    -- From the mark before on: the index still has an entry for each mark that this command has removed.
    select c.id, c.closed_as, m.since, m.seq into ended
    from windlass.ripple m
    join windlass.chain c on c.id = m.chain
    where (m.since, m.seq) >= (from_since, from_seq) and c.id <> all (passed)
    order by m.since, m.seq
    limit 1
    for no key update of c skip locked;
    exit when not found;
    steps := steps - 1;
    from_since := ended.since;
    from_seq := ended.seq;
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
      if ended.closed_as <> 'completed' then
        -- Dependents may have failed, and their chains have left marks before this one.
        from_since := 0;
        from_seq := 0;
      end if;
    end if;
    if exists (
      select from windlass.blocker b
      where b.chain = ended.id and b.waiting and (b.eager and ended.closed_as is not null or ended.closed_as = 'completed')
    ) then
      passed := passed || ended.id;
    else
      delete from windlass.ripple m where m.chain = ended.id and m.id = any (marks);
    end if;
  end loop;
  if exists (select from windlass.ripple m where not patient or m.since = now) then
    replies := replies || ('deferred', null, null, null, null, null)::windlass.reply_v1;
  end if;
end
$$;
