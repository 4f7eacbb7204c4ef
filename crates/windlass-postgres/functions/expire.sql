-- Removes chains with all their rows.
create function windlass.remove_chains_v1(chains uuid[]) returns void language plpgsql as $$
declare
  jobs constant uuid[] := chains || array(select j.id from windlass.job j where j.chain = any (chains) and j.position > 0);
begin
  delete from windlass.key k using windlass.chain c
  where c.id = any (chains) and c.key is not null and k.type = c.type and k.key = c.key and k.chain = c.id;
  delete from windlass.leaving l using windlass.chain c
  where c.id = any (chains) and l.leaves_at = c.leaves_at and l.seq = c.seq;
  delete from windlass.ripple where chain = any (chains);
  delete from windlass.blocker where job = any (jobs);
  delete from windlass.attempt where job = any (jobs);
  delete from windlass.job where id = any (jobs);
  delete from windlass.chain where id = any (chains);
end
$$;

-- Removes inner jobs of a chain that may be removed, oldest first. Returns their number.
create function windlass.trim_v1(now bigint, of_chain uuid, max_jobs integer) returns integer language plpgsql as $$
declare
  jobs uuid[];
begin
  jobs := array(
    select j.id
    from windlass.chain c
    join windlass.job j on j.chain = c.id and j.position > 0 and j.position < c.latest_position
    where c.id = of_chain
      and (c.closed_at is not null or windlass.later_v1(j.closed_at, greatest(c.keep_completed, 600000)) <= now)
    order by j.position
    limit max_jobs
  );
  delete from windlass.blocker where job = any (jobs);
  delete from windlass.attempt where job = any (jobs);
  delete from windlass.job where id = any (jobs);
  perform windlass.set_trim_v1(of_chain);
  return cardinality(jobs);
end
$$;

-- Returns and locks the chains to remove now, longest expired first, with at most this many jobs in total. A chain
-- that becomes removable when another one is removed is left to a later call.
create function windlass.removable_v1(now bigint, max_jobs integer, out chains uuid[], out jobs integer, out too_long uuid)
language plpgsql as $$
declare
  candidate record;
begin
  chains := '{}';
  jobs := 0;
  for candidate in
    select c.id, 1 + (
      select count(*) from (select from windlass.job j where j.chain = c.id and j.position > 0 limit max_jobs) n
    )::integer as jobs,
    -- Not `exists`: see `chain_reply_v1`.
    (select true from windlass.blocker b where b.job = c.id and b.needed limit 1) is true or (
      select true from windlass.job j join windlass.blocker b on b.job = j.id
      where j.chain = c.id and j.position > 0 and j.blockers > 0 and b.needed
      limit 1
    ) is true as needs
    from windlass.leaving l
    join windlass.chain c on c.id = l.chain and c.leaves_at = l.leaves_at
    where l.leaves_at <= now and not exists (select from windlass.blocker b where b.chain = c.id and b.needed)
    order by l.leaves_at, l.seq
    limit max_jobs + 1
    for no key update of c skip locked
  loop
    -- The chain is locked, so no job can attach to it now. Only another query can see jobs that attached since this
    -- one began.
    continue when exists (select from windlass.blocker b where b.chain = candidate.id and b.needed);
    if jobs + candidate.jobs > max_jobs then
      too_long := candidate.id;
      return;
    end if;
    exit when candidate.needs and cardinality(chains) > 0;
    chains := chains || candidate.id;
    jobs := jobs + candidate.jobs;
    exit when candidate.needs;
  end loop;
end
$$;

-- Removes chains and jobs whose retention has ended.
create function windlass.expire_v1(given bigint, max_jobs integer)
returns setof windlass.reply_v1 language plpgsql
set lock_timeout = '250ms' set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  left_over integer := max_jobs;
  leaving record;
  trimmed integer;
  open_chain uuid;
begin
  loop
    select * into leaving from windlass.removable_v1(now, left_over);
    exit when cardinality(leaving.chains) = 0;
    return query
    select 'expired', null::integer, array[c.id], array[c.type, c.closed_as], null::bigint[], null::bytea[]
    from windlass.chain c
    where c.id = any (leaving.chains);
    perform windlass.remove_chains_v1(leaving.chains);
    left_over := left_over - leaving.jobs;
  end loop;
  if leaving.too_long is not null then
    left_over := left_over - windlass.trim_v1(now, leaving.too_long, left_over);
  end if;
  while left_over > 0 loop
    select c.id into open_chain
    from windlass.chain c
    where c.trim_at <= now
    order by c.trim_at, c.id
    limit 1
    for no key update skip locked;
    exit when not found;
    left_over := left_over - windlass.trim_v1(now, open_chain, left_over);
  end loop;
  return query
  select
    'done', null::integer, null::uuid[], null::text[],
    array[max_jobs - left_over, (
      -- In the order of the indexes, so that the planner uses them.
      (
        select l.chain
        from windlass.leaving l
        where l.leaves_at <= now and not exists (select from windlass.blocker b where b.chain = l.chain and b.needed)
        order by l.leaves_at, l.seq
        limit 1
      ) is not null
      or (select c.id from windlass.chain c where c.trim_at <= now order by c.trim_at, c.id limit 1) is not null
    )::int]::bigint[],
    null::bytea[];
end
$$;
