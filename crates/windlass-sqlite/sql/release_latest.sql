-- The open or failed jobs of these chains no longer need their blockers.
-- ?1: [chain, ...]
with
  released as (
    select blocker.chain, count(*) as waits
    from json_each(?1) as asked
    join {prefix}job as first on first.id = unhex(asked.value)
    join {prefix}job as latest on latest.id = first.latest
    join {prefix}blocker as blocker on blocker.job = latest.seq
    where latest.status in ('blocked', 'pending', 'running', 'failed')
    group by blocker.chain
  )
update {prefix}job as job
set needed_by = needed_by - released.waits
from released
where job.id = released.chain
