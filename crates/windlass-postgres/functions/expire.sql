-- Removes chains with all their rows.
create function windlass.remove_chains_v1(chains uuid[]) returns void language plpgsql as $$
declare
  jobs constant uuid[] := chains || array(select j.id from windlass.job j where j.chain = any (chains) and j.position > 0);
begin
  delete from windlass.key k using windlass.chain c
  where c.id = any (chains) and c.key is not null and k.type = any (array[c.type]) and k.key = c.key and k.chain = c.id;
  delete from windlass.ripple where chain = any (chains);
  perform windlass.remove_jobs_v1(jobs);
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
  perform windlass.remove_jobs_v1(jobs);
  perform windlass.set_trim_v1(of_chain);
  return cardinality(jobs);
end
$$;

-- Drops chains from the rows of `leaving` with this time that are gone, were reopened or leave earlier. Moves chains that
-- are kept for longer to their own time. Skips rows that another transaction has locked.
create function windlass.shrink_leaving_v1(at_time bigint) returns void language plpgsql as $$
declare
  places constant tid[] := array(
    select l.ctid from windlass.leaving l where l.leaves_at = at_time for update skip locked
  );
  named uuid[] := array(
    select distinct m from windlass.leaving l cross join unnest(l.chains) m where l.ctid = any (places)
  );
  staying uuid[];
begin
  if cardinality(places) = 0 then
    return;
  end if;
  insert into windlass.leaving (leaves_at, chains)
  select windlass.leaves_v1(c.closed_at, c.retain_until), array_agg(c.id)
  from windlass.chain c
  where c.id = any (named) and windlass.leaves_v1(c.closed_at, c.retain_until) > at_time
  group by 1;
  staying := array(
    select c.id from windlass.chain c
    where c.id = any (named) and windlass.leaves_v1(c.closed_at, c.retain_until) = at_time
    order by c.seq
  );
  if cardinality(staying) < cardinality(named) or cardinality(places) > 1 then
    delete from windlass.leaving where ctid = any (places);
    if cardinality(staying) > 0 then
      insert into windlass.leaving (leaves_at, chains) values (at_time, staying);
    end if;
  end if;
end
$$;

-- Returns and locks the chains to remove now, longest expired first, with at most this many jobs in total. A chain
-- that becomes removable when another one is removed is left to a later call.
create function windlass.removable_v1(now bigint, max_jobs integer, out chains uuid[], out jobs integer, out too_long uuid)
language plpgsql as $$
declare
  candidate record;
  at_time bigint := -1;
begin
  chains := '{}';
  jobs := 0;
  loop
    -- Steps from time to time. A join of all rows with their chains would begin with all chains.
    at_time := (
      select l.leaves_at from windlass.leaving l where l.leaves_at > at_time and l.leaves_at <= now order by l.leaves_at limit 1
    );
    exit when at_time is null;
    perform windlass.shrink_leaving_v1(at_time);
    for candidate in
      select c.id, 1 + (
        select count(*) from (select from windlass.job j where j.chain = c.id and j.position > 0 limit max_jobs) n
      )::integer as jobs,
      -- Not `exists`: see `chain_reply_v1`.
      (select true from windlass.blocker b where b.job = c.id and b.needed limit 1) is true or (
        select true from windlass.job j join windlass.blocker b on b.job = any (array[j.id])
        where j.chain = c.id and j.position > 0 and j.blockers > 0 and b.needed
        limit 1
      ) is true as needs
      from windlass.chain c
      where c.id = any (array(
          select m from windlass.leaving l cross join unnest(l.chains) m where l.leaves_at = at_time
        ))
        and windlass.leaves_v1(c.closed_at, c.retain_until) = at_time
        and (select true from windlass.blocker b where b.chain = c.id and b.needed limit 1) is not true
      order by c.seq
      limit max_jobs + 1
      for update of c skip locked
    loop
      -- The chain is locked, so no job can attach to it now. Only another query can see jobs that attached since this
      -- one began.
      continue when exists (select from windlass.blocker b where b.chain = candidate.id and b.needed);
      if jobs + candidate.jobs > max_jobs then
        too_long := candidate.id;
        return;
      end if;
      if candidate.needs and cardinality(chains) > 0 then
        return;
      end if;
      chains := chains || candidate.id;
      jobs := jobs + candidate.jobs;
      if candidate.needs then
        return;
      end if;
    end loop;
  end loop;
end
$$;

-- Removes chains and jobs whose retention has ended.
create function windlass.expire_v1(given bigint, max_jobs integer)
returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
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
    from windlass.job c
    where c.trim_at <= now
    order by c.trim_at, c.id
    limit 1
    for no key update skip locked;
    exit when not found;
    left_over := left_over - windlass.trim_v1(now, open_chain, left_over);
  end loop;
  select * into leaving from windlass.removable_v1(now, 1);
  return query
  select
    'done', null::integer, null::uuid[], null::text[],
    array[max_jobs - left_over, (
      cardinality(leaving.chains) > 0 or leaving.too_long is not null
      -- In the order of the index, so that the planner uses it.
      or (select c.id from windlass.job c where c.trim_at <= now order by c.trim_at, c.id limit 1) is not null
    )::int]::bigint[],
    null::bytea[];
end
$$;
