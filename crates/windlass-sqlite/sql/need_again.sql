-- These jobs need their blockers again.
-- ?1: [seq, ...]
with
  again as (
    select blocker.chain, count(*) as waits
    from json_each(?1) as asked
    join {prefix}blocker as blocker on blocker.job = asked.value
    group by blocker.chain
  )
update {prefix}job as job
set needed_by = needed_by + again.waits
from again
where job.id = again.chain
