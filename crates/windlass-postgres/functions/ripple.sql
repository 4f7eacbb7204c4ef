-- Consequences of closed chains: resolves waits, and unblocks or fails the jobs that waited.
--
-- A closed chain has a mark until the last job that waits for it is resolved. A command that processes the mark locks
-- the chain's row and the row of each job that it resolves. It skips rows that another transaction has locked, and
-- leaves the mark. So only one command at a time processes a job, and it sees what all earlier ones have resolved: in
-- whatever order they overlap, the last one finds no wait left.

-- Locks waiting jobs. Commands that close blockers concurrently wait for each other briefly, in one order. Rows of a
-- transaction that stays open are skipped.
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

-- Resolves the waits of these locked jobs for a closed chain.
create function windlass.resolve_v1(now bigint, of_chain uuid, how text, jobs uuid[], patient boolean)
returns windlass.reply_v1[] language plpgsql as $$
declare
  own windlass.job;
  replies windlass.reply_v1[] := '{}';
  failing uuid[] := '{}';
  chains uuid[];
  free uuid[];
  busy uuid[];
begin
  if how <> 'completed' then
    failing := array(select id from windlass.job where id = any (jobs) and status is not distinct from 'blocked' and on_blocker_failure = 'fail');
    chains := array(select j.chain from windlass.job j where j.id = any (failing));
    if patient then
      busy := windlass.lock_chains_v1(chains, false);
    else
      free := array(select c.id from windlass.chain c where c.id = any (chains) order by c.id for update skip locked);
      busy := array(select c from unnest(chains) c where c <> all (free));
    end if;
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
    set status = 'pending', listed = null, due_at = greatest(due_at, now), version = version + 1
    where j.id = any (jobs) and j.id <> all (failing) and j.status is not distinct from 'blocked'
      and (select true from windlass.blocker b where b.job = j.id and b.waiting limit 1) is not true
    returning j.*
  ), made_ready as (
    insert into windlass.ready (seq, due_at, job, priority, has_blockers, bytes, type)
    select u.seq, u.due_at, u.id, u.priority, true, octet_length(u.input), u.type from unblocked u
  ), counted as (
    insert into windlass.tally (jobs, type, status)
    select c.jobs * m.sign, c.type, m.status
    from (select count(*) as jobs, u.type from unblocked u group by u.type) c
    cross join (values (1, 'pending'), (-1, 'blocked')) m (sign, status)
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

-- Removes marks without waiting jobs, up to the limit of one command: their chain is open, or its dependents are
-- resolved.
--
-- This function and `ripple_v1` lock the chain's row before they query for dependents, in a new statement. The
-- transaction that stored a mark held that lock until its commit, so the mark and its dependents become visible
-- together. Only marks that were visible before that query are removed.
create function windlass.sweep_v1(now bigint) returns void language plpgsql as $$
declare
  marks bigint[];
begin
  marks := array(
    select m.id
    from windlass.ripple m
    join windlass.chain c on c.id = any (array[m.chain])
    where m.since < now
    order by m.since, m.seq
    limit 1000
    for update of c skip locked
  );
  delete from windlass.ripple m using windlass.chain c
  where m.id = any (marks) and c.id = any (array[m.chain]) and (c.closed_as is null or not exists (
    select from windlass.blocker b where b.chain = c.id and b.waiting and (b.eager or c.closed_as = 'completed')
  ));
end
$$;

-- Processes marks, for as many jobs as the command may still resolve. In a transaction of the store, processes a few
-- older marks first, then those of this command. A transaction of the application processes only its own marks,
-- because no other session sees what it resolves before its commit.
--
-- With `patient`, waits briefly for jobs that another transaction has locked, once per command and only for its own
-- marks: a row that stays locked must not delay every later command. A mark that cannot be resolved moves behind all
-- others.
--
-- The reply says `deferred` if waits are left that a later command could resolve.
create function windlass.ripple_v1(
  now bigint, patient boolean, inout left_over integer, out replies windlass.reply_v1[]
) language plpgsql as $$
declare
  is_own constant boolean := coalesce(current_setting('windlassjobs.own', true), '') = '1';
  ended record;
  marks bigint[];
  jobs uuid[];
  locked uuid[];
  resolved windlass.reply_v1[];
  passed uuid[] := '{}';
  from_since bigint := now;
  from_seq bigint := 0;
  until_since bigint := 9223372036854775807;
  steps integer := 2000;
begin
  replies := '{}';
  if windlass.in_snapshot_v1() then
    -- Do not even query for marks: serializable transactions that read each other's marks conflict.
    replies := array[('deferred', null, null, null, null, null)::windlass.reply_v1];
    return;
  elsif not exists (select from windlass.ripple) then
    return;
  end if;
  if is_own and exists (select from windlass.ripple m where m.since < now) then
    perform windlass.sweep_v1(now);
    from_since := 0;
    until_since := now - 1;
    steps := 100;
  end if;
  while left_over > 0 loop
    -- Continue after the previous mark: the index still has an entry for each mark that this command has removed.
    select c.id, c.closed_as, m.since, m.seq into ended
    from windlass.ripple m
    join windlass.chain c on c.id = any (array[m.chain])
    where (m.since, m.seq) >= (from_since, from_seq) and m.since <= until_since and c.id <> all (passed)
      -- An application's transaction would hold the rows of other marks for as long as it stays open.
      and (is_own or m.tx = pg_current_xact_id())
    order by m.since, m.seq
    limit 1
    for update of c skip locked;
    if not found or steps = 0 then
      exit when until_since >= now;
      -- Enough older marks: continue with those of this command.
      from_since := now;
      from_seq := 0;
      until_since := 9223372036854775807;
      steps := 2000;
      continue;
    end if;
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
      if cardinality(locked) < cardinality(jobs) then
        patient := false;
      end if;
      if cardinality(locked) = 0 then
        -- Other transactions have locked the first of them. Later ones may be free.
        locked := array(
          select j.id
          from windlass.job j
          where j.id in (
            select b.job
            from windlass.blocker b
            where b.chain = ended.id and b.waiting
              and (b.eager and ended.closed_as is not null or ended.closed_as = 'completed')
          )
          limit left_over
          for no key update skip locked
        );
      end if;
      left_over := left_over - cardinality(locked);
      resolved := windlass.resolve_v1(now, ended.id, ended.closed_as, locked, patient);
      replies := replies || resolved;
      if from_since >= now and exists (select from unnest(resolved) r where r.part = 'closed') then
        -- Dependents have failed, and the marks of their chains may precede this one.
        from_seq := 0;
      end if;
    end if;
    if exists (
      select from windlass.blocker b
      where b.chain = ended.id and b.waiting and (b.eager and ended.closed_as is not null or ended.closed_as = 'completed')
    ) then
      passed := passed || ended.id;
      if ended.since < now then
        update windlass.ripple m set since = now where m.chain = ended.id and m.id = any (marks);
      end if;
    else
      delete from windlass.ripple m where m.chain = ended.id and m.id = any (marks);
    end if;
  end loop;
  -- The acquire of an exchange resolves only as many jobs as its settle has left.
  perform set_config('windlassjobs.left_over', left_over::text, true);
  if exists (select from windlass.ripple m where m.since = now) or is_own and exists (select from windlass.ripple) then
    replies := replies || ('deferred', null, null, null, null, null)::windlass.reply_v1;
  end if;
end
$$;
