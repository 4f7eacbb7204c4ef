-- The completed jobs of open chains that may leave, between the first and the latest, longest due first.
-- ?1: now; ?2: the most jobs; ?3: how long everything stays at least; ?4: the latest time there is
with
  trimming as (
    select id, latest_position, trim_at, max(retain_completed, ?3) as stays
    from {prefix}job
    where trim_at <= ?1 and chain_closed_at is null
    order by trim_at, id
    limit ?2
  )
select job.seq, trimming.id
from trimming
join {prefix}job as job
  on job.chain = trimming.id and job.position > 0 and job.position < trimming.latest_position
where min(job.closed_at + trimming.stays, ?4) <= ?1
order by trimming.trim_at, trimming.id, job.position
limit ?2
