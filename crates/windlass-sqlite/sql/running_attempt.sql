-- The attempt that holds a job.
-- ?1: id of the job
select fence, cancel_requested from {prefix}job where id = ?1 and status = 'running'
