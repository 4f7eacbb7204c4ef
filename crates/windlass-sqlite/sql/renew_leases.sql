-- ?1: [[job, fence, until], ...]
with
  renewed as (
    select unhex(value ->> 0) as id, value ->> 1 as fence, value ->> 2 as until from json_each(?1)
  )
update {prefix}job as job
set lease_until = renewed.until
from renewed
where job.id = renewed.id and job.status = 'running' and job.fence = renewed.fence
