-- Returns chains with their first and latest jobs.
create function windlass.get_chains_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[])
returns setof windlass.reply_v1 language plpgsql stable
set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
begin
  return query
  with found as materialized (
    select f.item, c.id, c.latest, c.ids, c.words, c.numbers
    from windlass.find_v1(now, chains, jobs, types, keys) f
    join windlass.chain_reply_v1 c on c.id = f.chain
  )
  select 'chain', f.item, f.ids, f.words, f.numbers, null::bytea[]
  from found f
  union all
  select 'job', f.item, j.ids, j.words, j.numbers, j.bytes
  from found f
  join windlass.job_reply_v1 j on j.id in (f.id, f.latest);
end
$$;
