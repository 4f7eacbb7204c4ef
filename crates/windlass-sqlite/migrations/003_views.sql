-- Views for people who read the tables. They show ids as UUIDs, times as ISO 8601 text in UTC, and JSON payloads as text.
-- No command uses them, so they cost nothing unless they are queried. A migration that changes columns of the tables
-- must drop these views first and create them again.
--
-- What comes from other rows is a subquery, which SQLite runs only if the column is selected. Unlike a left join, it is
-- also left out of a query that counts.

-- One row per job.
create view {prefix}jobs as
select
  {uuid j.id} as id,
  j.type,
  j.status,
  (select f.key from {prefix}job f where f.id = j.chain) as key, -- its chain's
  {uuid j.chain} as chain,
  j.chain_type,
  j.position,                                 -- its place in the chain, from 0
  j.priority,
  j.attempt,                                  -- the number of the latest attempt, 0 before the first
  j.max_attempts,
  {time j.due_at} as due_at,
  {time j.created_at} as created_at,
  {time j.started_at} as started_at,
  {time j.closed_at} as closed_at,
  {time j.lease_until} as leased_until,
  {uuid j.worker} as worker,                  -- of the latest attempt
  j.worker_name,
  j.cancel_requested,
  j.error,
  case when j.blockers > 0 then (
    select json_group_array(chain) from (
      select {uuid b.chain} as chain from {prefix}blocker b where b.job = j.seq order by b.position
    )
  ) else '[]' end as blockers,
  case when j.status = 'blocked' then (
    select json_group_array(chain) from (
      select {uuid b.chain} as chain from {prefix}blocker b where b.job = j.seq and b.waiting = 1 order by b.position
    )
  ) else '[]' end as waiting_for,             -- the blockers that have not ended
  {json j.input} as input,
  j.input_codec as input_encoding,
  length(j.input) as input_bytes,
  {json j.output} as output,
  j.output_codec as output_encoding,
  length(j.output) as output_bytes
from {prefix}job j;

-- One row per chain, with the input of its first job, and the status and output of its latest.
create view {prefix}chains as
select
  {uuid f.id} as id,
  f.type,
  coalesce(f.chain_closed_as, l.status) as status,
  f.key,
  {time f.created_at} as created_at,
  {time f.chain_closed_at} as closed_at,
  {time f.retain_until} as retain_until,
  f.latest_position + 1 as jobs,              -- how many it has had
  {uuid f.latest} as job,                     -- its latest job
  l.type as job_type,
  l.attempt,
  {time l.due_at} as due_at,
  l.error,
  {json f.input} as input,
  f.input_codec as input_encoding,
  length(f.input) as input_bytes,
  {json l.output} as output,
  l.output_codec as output_encoding,
  length(l.output) as output_bytes
from {prefix}job f
left join {prefix}job l on l.id = f.latest
where f.position = 0;

-- One row per attempt. The attempt that closed its job, and the one that is running, are in the job's row.
create view {prefix}attempts as
select
  {uuid j.id} as job,
  j.type,
  {uuid j.chain} as chain,
  a.attempt,
  a.ended,                                    -- `running`, or how it ended
  {time a.started_at} as started_at,
  {time a.ended_at} as ended_at,
  {uuid a.worker} as worker,
  a.worker_name,
  a.error
from (
  select job, attempt, ended, started_at, ended_at, worker, worker_name, error
  from {prefix}attempt
  union all
  select
    seq, attempt, case status when 'running' then 'running' else ended end, started_at,
    case when status <> 'running' then closed_at end, worker, worker_name,
    case when status in ('failed', 'cancelled') then error end
  from {prefix}job
  where worker is not null and started_at is not null and (status = 'running' or ended is not null)
) a
join {prefix}job j on j.seq = a.job;
