-- A deleted chain may be created again while failed jobs still need it.
-- ?1: the jobs: each has the job's own columns, the payload columns and, for a first job, the chain's columns, in
-- column order (SQLite finds a field by scanning those before it); ?2: their payloads, concatenated
with
  {items}
insert into {prefix}job (
  id, chain, position, type, chain_type, status, priority, due_at, max_attempts, fence, version, waits, blockers,
  on_blocker_failure, created_at, closed_at,
  trace, error, outside, input_codec, input, output_codec, output,
  needed_by,
  latest, latest_position, key, key_hold, key_window, key_held, retain_completed, retain_failed, retain_cancelled,
  chain_trace, chain_closed_at, chain_closed_as, retain_until, leaves_at, rippling
)
select
  unhex(value ->> '$[0][0]'), unhex(value ->> '$[0][1]'), value ->> '$[0][2]', value ->> '$[0][3]', value ->> '$[0][4]',
  value ->> '$[0][5]', value ->> '$[0][6]', value ->> '$[0][7]', value ->> '$[0][8]', value ->> '$[0][9]',
  value ->> '$[0][10]', value ->> '$[0][11]', value ->> '$[0][12]', value ->> '$[0][13]', value ->> '$[0][14]',
  value ->> '$[0][15]',
  value ->> '$[1][0]', value ->> '$[1][1]', unhex(value ->> '$[1][2]'), value ->> '$[1][3]',
  substr(?2, value ->> '$[1][4]', value ->> '$[1][5]'), value ->> '$[1][6]',
  iif(value ->> '$[1][6]' is null, null, substr(?2, value ->> '$[1][7]', value ->> '$[1][8]')),
  (
    select count(*)
    from {prefix}blocker as blocker
    join {prefix}job as job on job.seq = blocker.job
    where blocker.chain = unhex(value ->> '$[0][0]') and job.status in ('blocked', 'pending', 'running', 'failed')
  ),
  unhex(value ->> '$[2][0]'), value ->> '$[2][1]', value ->> '$[2][2]', value ->> '$[2][3]', value ->> '$[2][4]',
  value ->> '$[2][5]', value ->> '$[2][6]', value ->> '$[2][7]', value ->> '$[2][8]', value ->> '$[2][9]',
  value ->> '$[2][10]', value ->> '$[2][11]', value ->> '$[2][12]', value ->> '$[2][13]',
  coalesce(value ->> '$[2][14]', 0)
from item
order by item.key
