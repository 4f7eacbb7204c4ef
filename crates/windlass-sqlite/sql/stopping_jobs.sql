-- Running jobs of these workers that were asked to stop.
-- ?1: [worker, ...]
select job.id, job.fence, job.worker
from {prefix}job as job indexed by {prefix}job_running
where job.status = 'running'
  and job.cancel_requested = 1
  and job.worker in (select unhex(value) from json_each(?1))
