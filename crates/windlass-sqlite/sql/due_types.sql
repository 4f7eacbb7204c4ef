-- The pending job of each type with the earliest due time; see next_due.
-- ?1: [type, ...]
with recursive
  level (type, priority) as (
    select
      value,
      (
        select priority from {prefix}job
        where status = 'pending' and type = value
        order by priority desc limit 1
      )
    from json_each(?1)
    where value not in (select type from {prefix}paused)
    union all
    select
      level.type,
      (
        select priority from {prefix}job
        where status = 'pending' and type = level.type and priority < level.priority
        order by priority desc limit 1
      )
    from level
    where level.priority is not null
  )
select level.type, min(job.due_at) as due_at, job.seq
from level
join {prefix}job as job on job.seq = (
  select seq from {prefix}job
  where status = 'pending' and type = level.type and priority = level.priority
  order by due_at, seq limit 1
)
where level.priority is not null
group by level.type
