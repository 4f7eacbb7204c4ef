-- Roles with the least privileges for each part. They cannot log in: grant them to the roles of your programs.
--
-- {reader} reads jobs, chains, counts, workers and schedules. {producer} also starts chains, and cancels, triggers, retries
-- and completes them from outside, and changes schedules. {worker} also runs jobs. Only the owner of the tables migrates, erases, deletes and pauses.
--
-- The functions of the store run with the privileges of their owner, so no role needs to write a table.
do $$
declare
  wanted text;
begin
  foreach wanted in array array['{reader}', '{producer}', '{worker}'] loop
    if not exists (select from pg_catalog.pg_roles r where r.rolname = wanted) then
      execute pg_catalog.format('create role %I nologin', wanted);
    end if;
  end loop;
end
$$;
grant usage on schema {schema} to "{reader}";
grant select on
  windlass.migration, windlass.job, windlass.ready, windlass.lease, windlass.tally, windlass.leaving, windlass.ripple,
  windlass.key, windlass.blocker, windlass.attempt, windlass.paused, windlass.worker, windlass.leader, windlass.schedule, windlass.chain,
  windlass.job_reply_v1, windlass.chain_reply_v1, windlass.jobs, windlass.chains, windlass.attempts, windlass.counts
to "{reader}";
grant execute on function
  windlass.own_v1, windlass.time_v1, windlass.test_time_v1, windlass.later_v1, windlass.json_v1, windlass.get_chains_v1,
  windlass.list_jobs_v1, windlass.list_chains_v1, windlass.list_open_v1, windlass.count_v1, windlass.next_due_v1
to "{reader}";
grant "{reader}" to "{producer}";
grant execute on function
  windlass.new_jobs_v1, windlass.settlements_v1, windlass.create_plain_v1, windlass.create_keyed_v1, windlass.create_v1,
  windlass.cancel_v1, windlass.trigger_v1, windlass.retry_v1, windlass.set_retention_v1, windlass.complete_from_outside_v1,
  windlass.change_schedules_v1
to "{producer}";
grant "{producer}" to "{worker}";
grant execute on function
  windlass.acquire_v1, windlass.create_one_acquire_v1, windlass.settle_v1, windlass.settle_plain_v1,
  windlass.renew_v1, windlass.reap_v1, windlass.expire_v1, windlass.tidy_v1, windlass.beat_v1, windlass.retire_v1,
  windlass.leader_lock_v1
to "{worker}";
