-- The recorded attempts of a job.
-- ?1: seq of the job
select attempt, fence, worker, worker_name, started_at, ended_at, ended, error from {prefix}attempt where job = ?1 order by fence
