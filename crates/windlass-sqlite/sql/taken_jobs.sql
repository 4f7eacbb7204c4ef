-- The jobs that an acquire leased and that are still held under its request, in the order in which to run them.
-- ?1: request
select
  {chain},
  {record}
from {prefix}job as job
join {prefix}job as first on first.id = job.chain
where job.status = 'running' and job.request = ?1
order by job.priority desc, job.due_at, job.seq
