-- Completed jobs of open chains that may be removed, between the first and the latest; longest expired chains first.
-- In each chain, follows the index from one job to the next, up to the first that is kept.
-- ?1: now; ?2: maximum number of jobs; ?3: minimum time that everything is kept; ?4: latest timestamp
with recursive
  trimming as (
    select
      id,
      latest_position,
      trim_at,
      max(retain_completed, ?3) as stays,
      (select min(position) from {prefix}job where chain = first.id and position > 0) as oldest
    from {prefix}job as first
    where trim_at <= +?1 and chain_closed_at is null
    order by trim_at, id
    limit +?2
  ),
  trimmed (trim_at, id, position, seq, latest_position, stays) as (
    select trimming.trim_at, trimming.id, job.position, job.seq, trimming.latest_position, trimming.stays
    from trimming
    join {prefix}job as job on job.chain = trimming.id and job.position = trimming.oldest
    where job.position < trimming.latest_position and min(job.closed_at + trimming.stays, ?4) <= +?1
    union all
    select trimmed.trim_at, trimmed.id, job.position, job.seq, trimmed.latest_position, trimmed.stays
    from trimmed
    join {prefix}job as job on job.chain = trimmed.id and job.position = trimmed.position + 1
    where job.position < trimmed.latest_position and min(job.closed_at + trimmed.stays, ?4) <= +?1
    order by 1, 2, 3
    limit +?2
  )
select seq, id from trimmed
