-- Sets when the oldest remaining inner job may be removed.
-- ?1: [chain, ...]; ?2: minimum time that everything is kept; ?3: latest timestamp
update {prefix}job as first
set trim_at = (
  select min(job.closed_at + max(first.retain_completed, ?2), ?3)
  from {prefix}job as job
  where job.chain = first.id and job.position > 0 and job.position < first.latest_position
  order by job.position
  limit 1
)
where first.id in (select unhex(value) from json_each(?1))
