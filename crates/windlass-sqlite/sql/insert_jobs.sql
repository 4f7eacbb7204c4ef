-- A chain that was deleted may come again, and failed jobs may still need it.
-- ?1: the jobs; ?2: their payloads, one behind the other
with
  {items}
insert into {prefix}job (
  id, chain, position, type, chain_type, status, priority, due_at, max_attempts, fence, version, waits, blockers,
  on_blocker_failure, created_at, closed_at, trace, latest, latest_position, key, key_hold, key_window, key_held,
  retain_completed, retain_failed, retain_cancelled, chain_trace, chain_closed_at, chain_closed_as, retain_until,
  leaves_at, rippling, needed_by, error, outside, input_codec, input, output_codec, output
)
select
  unhex(value ->> 'id'), unhex(value ->> 'chain'), value ->> 'position', value ->> 'type', value ->> 'chain_type',
  value ->> 'status', value ->> 'priority', value ->> 'due_at', value ->> 'max_attempts', value ->> 'fence',
  value ->> 'version', value ->> 'waits', value ->> 'blockers', value ->> 'on_blocker_failure', value ->> 'created_at',
  value ->> 'closed_at', value ->> 'trace', unhex(value ->> 'latest'), value ->> 'latest_position', value ->> 'key',
  value ->> 'key_hold', value ->> 'key_window', value ->> 'key_held', value ->> 'retain_completed',
  value ->> 'retain_failed', value ->> 'retain_cancelled', value ->> 'chain_trace', value ->> 'chain_closed_at',
  value ->> 'chain_closed_as', value ->> 'retain_until', value ->> 'leaves_at', coalesce(value ->> 'rippling', 0),
  (
    select count(*)
    from {prefix}blocker as blocker
    join {prefix}job as job on job.seq = blocker.job
    where blocker.chain = unhex(value ->> 'id') and job.status in ('blocked', 'pending', 'running', 'failed')
  ),
  value ->> 'error', unhex(value ->> 'outside'), value ->> 'input_codec',
  substr(?2, value ->> 'input_start', value ->> 'input_length'), value ->> 'output_codec',
  iif(value ->> 'output_codec' is null, null, substr(?2, value ->> 'output_start', value ->> 'output_length'))
from item
order by item.key
