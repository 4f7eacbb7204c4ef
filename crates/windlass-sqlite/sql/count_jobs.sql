-- Counts by type, each status from the index that holds it.
-- ?1: [type, ...] or null for all; ?2: now
with
  counted (type, status, jobs, oldest_due, expired) as (
    select type, 'pending', count(*), min(due_at), 0
    from {prefix}job where status = 'pending' group by type
    union all
    select type, 'running', count(*), null, sum(lease_until <= +?2)
    from {prefix}job where status = 'running' group by type
    union all
    select type, 'blocked', count(*), null, 0
    from {prefix}job where status = 'blocked' group by type
    union all
    select type, status, count(*), null, 0
    from {prefix}job where status in ('completed', 'failed', 'cancelled') group by type, status
    union all
    select type, 'paused', 0, null, 0 from {prefix}paused
  )
select
  type,
  sum(jobs) filter (where status = 'blocked') as blocked,
  sum(jobs) filter (where status = 'pending') as pending,
  sum(jobs) filter (where status = 'running') as running,
  sum(jobs) filter (where status = 'completed') as completed,
  sum(jobs) filter (where status = 'failed') as failed,
  sum(jobs) filter (where status = 'cancelled') as cancelled,
  min(oldest_due) as oldest_due,
  sum(expired) as expired,
  max(status = 'paused') as paused
from counted
where ?1 is null or type in (select value from json_each(?1))
group by type
order by type
