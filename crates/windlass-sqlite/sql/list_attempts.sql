-- The recorded attempts of a job, and the attempt that is running or closed it.
-- ?1: job
select attempt.attempt, attempt.fence, attempt.worker, attempt.started_at, attempt.ended_at, attempt.ended, attempt.error
from {prefix}job as job
join {prefix}attempt as attempt on attempt.job = job.seq
where job.id = ?1
union all
select
  attempt, fence, worker, started_at, iif(status = 'running', null, closed_at),
  iif(status = 'running', 'running', ended), iif(status in ('failed', 'cancelled'), error, null)
from {prefix}job
where id = ?1 and worker is not null and started_at is not null and (status = 'running' or ended is not null)
order by 2
