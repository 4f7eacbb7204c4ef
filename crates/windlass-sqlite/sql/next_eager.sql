-- The oldest blocked job that waits for a chain and does not keep waiting if it fails.
-- ?1: chain
select job.id from {prefix}blocker as blocker cross join {prefix}job as job on job.seq = blocker.job
where blocker.chain = ?1 and blocker.waiting = 1 and blocker.eager = 1
order by blocker.job limit 1
