-- Which chains these chains wait for, and those in turn, and so on, up to a limit.
-- ?1: [chain, ...]; ?2: the most chains to look at
with recursive
  reached (chain) as (
    select unhex(value) from json_each(?1)
    union
    select blocker.chain
    from reached
    join {prefix}job as first on first.id = reached.chain
    join {prefix}job as latest on latest.id = first.latest and latest.status = 'blocked'
    join {prefix}blocker as blocker on blocker.job = latest.seq and blocker.resolved = 0
    limit ?2
  )
select reached.chain as waiting, blocker.chain as awaited
from reached
join {prefix}job as first on first.id = reached.chain
join {prefix}job as latest on latest.id = first.latest and latest.status = 'blocked'
join {prefix}blocker as blocker on blocker.job = latest.seq and blocker.resolved = 0
order by reached.chain, blocker.position
