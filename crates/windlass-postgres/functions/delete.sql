-- Removes chains with all their jobs, all or none. With `only_seen`, each chain must be as the caller has read it:
-- `seen_jobs` has the latest job of each chain, and `seen_versions` its version.
create function windlass.delete_v1(
  given bigint, chains uuid[], jobs uuid[], types text[], keys text[], cascades boolean, only_seen boolean,
  seen_jobs uuid[], seen_versions bigint[]
) returns setof windlass.reply_v1 language plpgsql security definer
set lock_timeout = '250ms' set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  doomed uuid[];
  level uuid[];
begin
  -- A snapshot hides jobs that have started to depend on these chains since.
  if windlass.in_snapshot_v1() then
    return query select 'in_snapshot', null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[];
    return;
  end if;
  select coalesce(array_agg(f.chain order by f.item), '{}') into doomed
  from (
    select f.chain, min(f.item) as item
    from windlass.find_v1(now, chains, jobs, types, keys) f
    where f.chain is not null
    group by f.chain
  ) f;
  level := doomed;
  while cascades and cardinality(level) > 0 and cardinality(doomed) <= 1000 loop
    select coalesce(array_agg(b.chain order by b.at, b.index, b.position), '{}') into level
    from (
      select distinct on (b.chain) b.chain, array_position(level, j.chain) as at, j.position as index, b.position
      from (
        select j.id, j.chain, j.position from windlass.job j where j.id = any (level)
        union all
        select j.id, j.chain, j.position from windlass.job j where j.chain = any (level) and j.position > 0
      ) j
      join windlass.blocker b on b.job = any (array[j.id])
      join windlass.chain c on c.id = any (array[b.chain])
      where b.chain <> all (doomed)
      order by b.chain, array_position(level, j.chain), j.position, b.position
    ) b;
    doomed := doomed || level;
  end loop;
  if cascades and cardinality(doomed) > 1000 then
    return query select 'refused', null::integer, null::uuid[], array['too_many_chains'], null::bigint[], null::bytea[];
    return;
  end if;
  -- The chains first: no job is added to them then.
  if cardinality(windlass.lock_chains_v1(doomed, false)) > 0
    or cardinality(windlass.lock_jobs_v1(array(select c.latest from windlass.chain c where c.id = any (doomed)))) > 0
  then
    return query select 'busy', null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[];
    return;
  end if;
  -- No other transaction changes the chains from here on, because they are locked.
  if only_seen then
    return query
    select 'refused', null::integer, array[c.id], array['changed'], null::bigint[], null::bytea[]
    from unnest(doomed) with ordinality d (id, n)
    join windlass.chain c on c.id = any (array[d.id])
    join windlass.job l on l.id = any (array[c.latest])
    where seen_versions[array_position(seen_jobs, l.id)] is distinct from l.version
    order by d.n
    limit 100;
    if found then
      return;
    end if;
  end if;
  return query
  select 'refused', null::integer, array[b.chain, b.job], array['needed'], null::bigint[], null::bytea[]
  from (
    -- A subquery instead of a join, so that the planner cannot begin with all jobs.
    select distinct b.chain, b.job, b.seq
    from windlass.blocker b
    where b.chain = any (doomed) and b.needed and (
      select j.status in ('blocked', 'pending', 'running') and j.chain <> all (doomed)
      from windlass.job j
      where j.id = b.job
    )
  ) b
  order by array_position(doomed, b.chain), b.seq
  limit 100;
  if found then
    return;
  end if;
  return query
  select
    'deleted', null::integer, array[c.id, l.id, case when l.status = 'running' then l.worker end], array[c.type, l.status],
    null::bigint[], null::bytea[]
  from unnest(doomed) with ordinality d (id, n)
  join windlass.chain c on c.id = any (array[d.id])
  join windlass.job l on l.id = any (array[c.latest])
  order by d.n;
  perform windlass.remove_chains_v1(doomed);
end
$$;
