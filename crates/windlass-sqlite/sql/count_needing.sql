-- How many blockers of open or failed jobs a chain is.
-- ?1: chain
select count(*) from {prefix}blocker as blocker cross join {prefix}job as job on job.seq = blocker.job
where blocker.chain = ?1 and job.status in ('blocked', 'pending', 'running', 'failed')
