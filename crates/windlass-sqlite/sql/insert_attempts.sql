-- ?1: attempts that ended and did not close their job
with
  {items}
insert into {prefix}attempt (job, fence, attempt, worker, started_at, ended_at, ended, error)
select
  value ->> 'job', value ->> 'fence', value ->> 'attempt', unhex(value ->> 'worker'), value ->> 'started_at',
  value ->> 'ended_at', value ->> 'ended', value ->> 'error'
from item
