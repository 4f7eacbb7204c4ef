-- Running jobs whose lease has expired, longest expired first.
-- ?1: now; ?2: [type, ...] or null for all; ?3: [job, ...] to exclude; ?4: maximum number of jobs
select
  {job}
from {prefix}job as job
where job.status = 'running'
  and job.lease_until <= +?1
  and (?2 is null or job.type in (select value from json_each(?2)))
  and job.id not in (select unhex(value) from json_each(?3))
order by job.lease_until, job.seq
limit +?4
