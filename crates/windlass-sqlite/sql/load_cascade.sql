-- The chains that the jobs of these chains wait or waited for, recursively, up to a limit.
-- ?1: [chain, ...]; ?2: maximum number of chains
with recursive
  reached (chain) as (
    select unhex(value) from json_each(?1)
    union
    select blocker.chain
    from reached
    cross join {prefix}job as job on job.chain = reached.chain
    cross join {prefix}blocker as blocker on blocker.job = job.seq
    cross join {prefix}job as stored on stored.id = blocker.chain
    limit +?2
  )
select reached.chain as waiting, blocker.chain as awaited
from reached
cross join {prefix}job as job on job.chain = reached.chain
cross join {prefix}blocker as blocker on blocker.job = job.seq
cross join {prefix}job as stored on stored.id = blocker.chain
order by reached.chain, job.position, blocker.position
