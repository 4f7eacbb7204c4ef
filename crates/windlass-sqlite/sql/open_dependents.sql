-- The open jobs that wait or waited for a chain.
-- ?1: chain; ?2: maximum
select distinct job.id from {prefix}blocker as blocker cross join {prefix}job as job on job.seq = blocker.job
where blocker.chain = ?1 and job.status in ('blocked', 'pending', 'running')
order by blocker.job limit +?2
