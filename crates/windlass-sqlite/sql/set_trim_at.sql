-- When the oldest inner job that is left may leave.
-- ?1: [chain, ...]; ?2: how long everything stays at least; ?3: the latest time there is
update {prefix}job as first
set trim_at = (
  select min(job.closed_at + max(first.retain_completed, ?2), ?3)
  from {prefix}job as job
  where job.chain = first.id and job.position > 0 and job.position < first.latest_position
  order by job.position
  limit 1
)
where first.id in (select unhex(value) from json_each(?1))
