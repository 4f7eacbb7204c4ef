-- The jobs of these attempts: whether each attempt still holds its job, and else how it ended, if that is remembered.
-- ?1: [[job, fence], ...]
with
  asked as (
    select key as item, unhex(value ->> 0) as id, value ->> 1 as fence from json_each(?1)
  )
select
  asked.item,
  job.status = 'running' and job.fence = asked.fence as held,
  case when job.fence = asked.fence and job.ended is not null then job.ended else attempt.ended end as ended_as,
  job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.due_at, job.attempt,
  job.max_attempts, job.fence, job.version, job.worker, job.lease_until, job.cancel_requested, job.waits,
  job.blockers, job.on_blocker_failure, job.started_at, job.error, job.ended, job.closed_at, job.outside
from asked
join {prefix}job as job on job.id = asked.id
left join {prefix}attempt as attempt on attempt.job = job.seq and attempt.fence = asked.fence
order by asked.item
