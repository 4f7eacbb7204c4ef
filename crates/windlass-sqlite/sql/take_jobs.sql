-- Leases the first due jobs to a worker, unless it holds some under the same request. Each type is a stream of due
-- jobs by priority, due time and order of creation. The recursion merges the streams: it takes the first of all heads
-- and replaces it with the next job of that stream. Every step is an index lookup, so neither future jobs nor the
-- length of the queues add cost.
-- ?1: [[type, quota, lease], ...]; ?2: maximum number of jobs; ?3: now; ?4: worker; ?5: request; ?6: latest timestamp
with recursive
  wanted as materialized (
    select value ->> 0 as type, value ->> 1 as quota, value ->> 2 as lease from json_each(?1)
    where value ->> 0 not in (select type from {prefix}paused)
      and not exists (select 1 from {prefix}job where status = 'running' and request = ?5)
  ),
  level (type, quota, priority) as (
    select
      wanted.type,
      wanted.quota,
      (
        select priority from {prefix}job
        where status = 'pending' and type = wanted.type
        order by priority desc limit 1
      )
    from wanted
    where wanted.quota > 0
    union all
    select
      level.type,
      level.quota,
      (
        select priority from {prefix}job
        where status = 'pending' and type = level.type and priority < level.priority
        order by priority desc limit 1
      )
    from level
    where level.priority is not null
  ),
  head as materialized (
    select
      level.type,
      level.quota,
      level.priority,
      (
        select seq from {prefix}job
        where status = 'pending' and type = level.type and priority = level.priority and due_at <= +?3
        order by due_at, seq limit 1
      ) as seq
    from level
    where level.priority is not null
  ),
  stream (priority, due_at, seq, type, quota, taken) as (
    select job.priority, job.due_at, job.seq, job.type, front.quota, 1
    from (
      select type, quota, max(priority) as priority, seq from head where seq is not null group by type
    ) as front
    join {prefix}job as job on job.seq = front.seq
    union all
    select job.priority, job.due_at, job.seq, job.type, stream.quota, stream.taken + 1
    from stream
    join {prefix}job as job on job.seq = coalesce(
      (
        select seq from {prefix}job
        where status = 'pending' and type = stream.type and priority = stream.priority
          and due_at = stream.due_at and seq > stream.seq
        order by seq limit 1
      ),
      (
        select seq from {prefix}job
        where status = 'pending' and type = stream.type and priority = stream.priority
          and due_at > stream.due_at and due_at <= +?3
        order by due_at, seq limit 1
      ),
      (
        select seq from head
        where type = stream.type and priority < stream.priority and seq is not null
        order by priority desc limit 1
      )
    )
    where stream.taken < stream.quota
    order by 1 desc, 2, 3
    limit +?2
  )
update {prefix}job as job
set
  status = 'running',
  attempt = attempt + 1,
  fence = fence + 1,
  version = version + 1,
  worker = ?4,
  request = ?5,
  lease_until = min(?3 + (select lease from wanted where wanted.type = job.type), ?6),
  started_at = ?3,
  ended = null
where job.seq in (select seq from stream)
