-- These jobs no longer need their blockers.
-- ?1: [seq, ...]
with
  released as (
    select blocker.chain, count(*) as waits
    from json_each(?1) as asked
    join {prefix}blocker as blocker on blocker.job = asked.value
    group by blocker.chain
  )
update {prefix}job as job
set needed_by = needed_by - released.waits
from released
where job.id = released.chain
