-- Returns chains with their first and latest jobs.
create function windlass.get_chains_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[])
returns setof windlass.job_row_v1 language plpgsql stable security definer
set enable_seqscan = off set enable_material = off set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query
  with found as materialized (
    select f.item, c.id, c.latest, c.ids, c.words, c.numbers
    from windlass.find_v1(now, chains, jobs, types, keys) f
    join windlass.chain_reply_v1 c on c.id = any (array[f.chain])
  )
  select 'chain', f.item, f.ids, f.words, f.numbers, null::bytea[], (null::windlass.job_reply_v1).*
  from found f
  union all
  select 'job', f.item, null, null, null, null, j.*
  from found f
  cross join lateral unnest(array[f.id] || nullif(f.latest, f.id)) w (id)
  join windlass.job_reply_v1 j on j.id = any (array[w.id]) and w.id is not null;
end
$$;
