-- ?1: attempts that ended and did not close their job
with
  -- Each item is taken out of the array once, and its fields out of the item.
  item as materialized (
    select key, jsonb(value) as value from json_each(?1)
  )
insert into {prefix}attempt (job, fence, attempt, worker, started_at, ended_at, ended, error)
select
  value ->> 'job', value ->> 'fence', value ->> 'attempt', unhex(value ->> 'worker'), value ->> 'started_at',
  value ->> 'ended_at', value ->> 'ended', value ->> 'error'
from item
