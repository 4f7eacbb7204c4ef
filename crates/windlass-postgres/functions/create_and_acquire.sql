-- Starts one chain without blockers, and acquires jobs for an idle worker.
--
-- If `ready` has no row of the worker's types, due or not, stores the new job as running, and returns it in one row. This avoids
-- inserting a row of `ready`, deleting it and updating the job. Otherwise creates the chain and then acquires, as two commands
-- would.
create function windlass.create_one_acquire_v1(
  given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[],
  priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[],
  keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[],
  replaces uuid[], by_request uuid, by_worker uuid, by_name text, wanted text[], maxima bigint[], leases bigint[],
  max_jobs integer, floor_types text[], floor_priorities bigint[], floors bigint[], careful boolean
) returns setof windlass.job_row_v1 language plpgsql security definer
set lock_timeout = '10ms' set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp
as $$
declare
  now constant bigint := windlass.time_v1(given);
  place constant integer := array_position(wanted, types[1]);
  can_start_now boolean := maxima[place] > 0 and max_jobs > 0 and windlass.due_v1(now, due_at[1], due_after[1]) = now;
  started windlass.job_row_v1;
begin
  -- If the client passes floors, `ready` has many dead rows, and the check for pending jobs would scan them.
  if can_start_now and floor_types is null then
    -- The same request may be sent twice concurrently, see `acquire_v1`.
    perform pg_advisory_xact_lock(hashtextextended(by_request::text, 0));
    select not (
      exists (select from windlass.ready r where r.type = any (wanted))
      or exists (select from windlass.ripple) or exists (select from windlass.paused)
      or exists (select from windlass.lease l where l.request = by_request)
      -- Checked again below: another transaction may delete a job in between.
      or coalesce(pg_sequence_last_value('windlass.deleted_fence') > now * 1024, false)
    ) into can_start_now;
    if can_start_now then
      begin
        if keys[1] is not null then
          insert into windlass.key (type, key, chain) values (types[1], keys[1], ids[1]) on conflict do nothing;
          if not found then
            raise exception using errcode = 'WL001', message = 'the key is in use';
          end if;
        end if;
        insert into windlass.job as j (
          id, chain, type, chain_type, status, priority, due_at, max_attempts, fence, version, attempt, started_at,
          lease_until, worker, worker_name, request, on_blocker_failure, created_at, trace, input_codec, input,
          keep_completed, keep_failed, keep_cancelled, chain_trace, key, key_hold, key_window
        ) values (
          ids[1], ids[1], types[1], types[1], 'running', priorities[1], now, max_attempts[1], now * 1024 + 1, 1, 1, now,
          windlass.later_v1(now, leases[place]), by_worker, by_name, by_request, on_blocker_failure[1], now, traces[1], codecs[1],
          inputs[1], keep_completed[1], keep_failed[1], keep_cancelled[1], chain_traces[1], keys[1], key_holds[1],
          key_windows[1]
        ) returning
          'started'::text, null::integer, null::uuid[], null::text[], null::bigint[], null::bytea[],
          j.id, j.chain, j.worker, j.request, j.closed_by, j.type, j.chain_type, j.status, j.input_codec, j.output_codec,
          j.error, j.on_blocker_failure, j.trace, j.worker_name, j.position, j.priority, j.due_at, j.attempt, j.max_attempts,
          j.fence, j.version, j.lease_until, j.cancel_requested, j.created_at, j.started_at, j.closed_at, j.input, j.output,
          null::uuid[], null::text[], null::boolean[], j.key, j.chain_trace, j.created_at, j.keep_completed, j.keep_failed,
          j.keep_cancelled, j.seq
        into started;
        if pg_sequence_last_value('windlass.deleted_fence') > now * 1024 then
          raise exception using errcode = 'WL001', message = 'the fence may have been used';
        end if;
        insert into windlass.lease (request, until, type, has_blockers, jobs)
        values (by_request, started.lease_until, started.type, false, ids);
        insert into windlass.tally (jobs, type, status) values (1, started.type, 'running');
        return next started;
        return;
      exception when unique_violation or lock_not_available or deadlock_detected or sqlstate 'WL001' then
        -- Continue with the general functions, which wait or refuse.
      end;
    end if;
  end if;
  if keys[1] is null then
    return query
    select o.*
    from windlass.create_plain_v1(
      given, ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces,
      keep_completed, keep_failed, keep_cancelled, chain_traces
    ) r, windlass.row_v1(r) o;
  else
    return query
    select o.*
    from windlass.create_keyed_v1(
      given, ids, types, codecs, inputs, due_at, due_after, priorities, max_attempts, on_blocker_failure, traces,
      keep_completed, keep_failed, keep_cancelled, chain_traces, keys, key_holds, key_windows, replaces
    ) r, windlass.row_v1(r) o;
  end if;
  return query
  select *
  from windlass.acquire_v1(
    given, by_request, by_worker, by_name, wanted, maxima, leases, max_jobs, floor_types, floor_priorities, floors, true, careful
  );
end
$$;
