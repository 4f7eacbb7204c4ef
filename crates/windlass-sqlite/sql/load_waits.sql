-- The chains that these chains wait for, or would wait for if they were retried, recursively, up to a limit.
-- ?1: [chain, ...]; ?2: maximum number of chains; ?3: [job, ...]: jobs that the command may close before it searches
with recursive
  wait as not materialized (
    select first.id as waiting, latest.status, blocker.chain as awaited, blocker.position, blocker.resolved
    from {prefix}job as first
    join {prefix}job as latest on latest.id = first.latest
    join {prefix}blocker as blocker on blocker.job = latest.seq
    where (latest.status = 'blocked' and blocker.resolved = 0)
      or latest.status in ('failed', 'cancelled')
      or latest.id in (select unhex(value) from json_each(?3))
  ),
  reached (chain) as (
    select unhex(value) from json_each(?1)
    union
    select wait.awaited
    from reached
    join wait on wait.waiting = reached.chain
    limit +?2
  )
select reached.chain as waiting, wait.status, wait.awaited, wait.resolved
from reached
join wait on wait.waiting = reached.chain
order by reached.chain, wait.position
