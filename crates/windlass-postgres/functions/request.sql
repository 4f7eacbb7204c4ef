-- PostgreSQL plans a function in SQL again for each statement that calls it, unless it can inline the function. A
-- function in PL/pgSQL is planned once per connection.

-- The new jobs of a command, from one array per column. Blockers have their own arrays, with the number of the job
-- that waits for them.
create function windlass.new_jobs_v1(
  ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[],
  max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[],
  keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[], replaces uuid[],
  blocked bigint[], blockers uuid[], blocker_traces text[]
) returns windlass.new_v1[] language plpgsql stable
set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(ids) = 0 then
    return '{}';
  end if;
  return array(
    select (
      n.item, n.id, n.type, n.codec, n.input, n.due_at, n.due_after, n.priority, n.max_attempts, n.policy, n.trace, n.key,
      n.key_hold, n.key_window, n.replaces, n.keep_completed, n.keep_failed, n.keep_cancelled, n.chain_trace,
      coalesce(b.chains, '{}'), coalesce(b.traces, '{}')
    )::windlass.new_v1
    from unnest(
      ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces, keys, key_holds,
      key_windows, replaces, keep_completed, keep_failed, keep_cancelled, chain_traces
    ) with ordinality n (
      id, type, codec, input, due_at, due_after, priority, max_attempts, policy, trace, key, key_hold, key_window, replaces,
      keep_completed, keep_failed, keep_cancelled, chain_trace, item
    )
    left join (
      select b.blocked, array_agg(b.chain order by b.n) as chains, array_agg(b.trace order by b.n) as traces
      from unnest(blocked, blockers, blocker_traces) with ordinality b (blocked, chain, trace, n)
      group by b.blocked
    ) b on b.blocked = n.item
    order by n.item
  );
end
$$;

-- The settlements of a command, in the same form.
create function windlass.settlements_v1(
  jobs uuid[], fences bigint[], outcomes text[], codecs text[], outputs bytea[], errors text[], due_at bigint[],
  due_after bigint[], retentions bigint[], invalid bigint[], created bigint[], carried bigint[]
) returns windlass.settlement_v1[] language plpgsql stable set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(
    select (
      s.item, s.job, s.fence, s.outcome, s.codec, s.output, s.error, s.due_at, s.due_after, s.retention, s.invalid = 1,
      s.created, s.carried
    )::windlass.settlement_v1
    from unnest(
      jobs, fences, outcomes, codecs, outputs, errors, due_at, due_after, retentions, invalid, created, carried
    ) with ordinality s (
      job, fence, outcome, codec, output, error, due_at, due_after, retention, invalid, created, carried, item
    )
    order by s.item
  );
end
$$;
