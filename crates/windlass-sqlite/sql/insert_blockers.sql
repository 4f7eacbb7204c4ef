-- ?1: the blockers of jobs that were inserted just now
with
  -- Each item is taken out of the array once, and its fields out of the item.
  item as materialized (
    select key, jsonb(value) as value from json_each(?1)
  )
insert into {prefix}blocker (job, position, chain, resolved, waiting, eager, trace)
select
  job.seq, value ->> 'position', unhex(value ->> 'chain'), value ->> 'resolved', value ->> 'waiting',
  value ->> 'eager', value ->> 'trace'
from item
join {prefix}job as job on job.id = unhex(value ->> 'job')
