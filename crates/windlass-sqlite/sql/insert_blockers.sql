-- ?1: the blockers of jobs that were inserted just now
with
  {items}
insert into {prefix}blocker (job, position, chain, resolved, waiting, eager, trace)
select
  job.seq, value ->> 'position', unhex(value ->> 'chain'), value ->> 'resolved', value ->> 'waiting',
  value ->> 'eager', value ->> 'trace'
from item
join {prefix}job as job on job.id = unhex(value ->> 'job')
