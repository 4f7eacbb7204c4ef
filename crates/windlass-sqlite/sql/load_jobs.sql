-- The jobs of these attempts, with their chains: whether each attempt still holds its job, or how it ended, if that
-- is recorded.
-- ?1: [[job, fence], ...]
with
  asked as (
    select key as item, unhex(value ->> 0) as id, value ->> 1 as fence from json_each(?1)
  )
select
  asked.item,
  job.status = 'running' and job.fence = asked.fence as held,
  case when job.fence = asked.fence and job.ended is not null then job.ended else attempt.ended end as ended_as,
  job.ended, job.closed_at, job.outside,
  {chain},
  {concern},
  {job}
from asked
join {prefix}job as job on job.id = asked.id
join {prefix}job as first on first.id = job.chain
left join {prefix}attempt as attempt on attempt.job = job.seq and attempt.fence = asked.fence
order by asked.item
