-- Open jobs of other chains that depend on these, in the order of the chains and of their creation.
-- ?1: [chain, ...]; ?2: maximum number
select distinct asked.key as item, first.id as chain, job.seq, job.id
from json_each(?1) as asked
join {prefix}job as first on first.id = unhex(asked.value) and first.needed_by > 0
join {prefix}blocker as blocker on blocker.chain = first.id
join {prefix}job as job on job.seq = blocker.job
where job.status in ('blocked', 'pending', 'running')
  and job.chain not in (select unhex(value) from json_each(?1))
order by asked.key, job.seq
limit +?2
