select
  'attempt', null::integer, array[a.worker], array[a.ended, a.error, a.worker_name], array[a.attempt, a.fence, a.started_at, a.ended_at],
  null::bytea[]
from (
  select a.worker, a.worker_name, a.ended, a.error, a.attempt, a.fence, a.started_at, a.ended_at
  from windlass.attempt a
  where a.job = $1
  union all
  select
    j.worker, j.worker_name, case j.status when 'running' then 'running' else j.ended end,
    case when j.status in ('failed', 'cancelled') then j.error end, j.attempt, j.fence, j.started_at,
    case when j.status <> 'running' then j.closed_at end
  from windlass.job j
  where j.id = $1 and j.worker is not null and j.started_at is not null and (j.status = 'running' or j.ended is not null)
) a
order by a.fence
