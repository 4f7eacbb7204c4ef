-- Whether each of these attempts still holds its job.
-- ?1: [[job, fence], ...]
with
  asked as (
    select key as item, unhex(value ->> 0) as id, value ->> 1 as fence from json_each(?1)
  )
select
  asked.item,
  job.status = 'running' and job.fence = asked.fence as held,
  job.status,
  job.cancel_requested
from asked
join {prefix}job as job on job.id = asked.id
