-- The jobs that an acquire took and that are still held under it, in the order in which they are to be run.
-- ?1: request
select
  {chain},
  {record}
from {prefix}job as job
join {prefix}job as first on first.id = job.chain
where job.status = 'running' and job.request = ?1
order by job.priority desc, job.due_at, job.seq
