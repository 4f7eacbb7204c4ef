-- When the oldest inner job of an open chain may be deleted.
-- ?1: chain; ?2: minimum time that a closed job is kept; ?3: maximum time
update {prefix}job as first
set trim_at = (
  select min(inner_job.closed_at + max(first.retain_completed, ?2), ?3) from {prefix}job as inner_job
  where inner_job.chain = ?1 and inner_job.position > 0 and inner_job.position < first.latest_position
  order by inner_job.position limit 1
)
where first.id = ?1 and first.chain_closed_at is null
