-- The blockers of a job.
-- ?1: seq of the job
select chain, resolved, trace from {prefix}blocker where job = ?1 order by position
