-- Counts the new waits for the chains of new blockers.
-- ?1: as for insert_blockers
with
  added as (
    select unhex(value ->> 'chain') as chain, count(*) as waits from json_each(?1) group by 1
  )
update {prefix}job as job
set needed_by = needed_by + added.waits
from added
where job.id = added.chain
