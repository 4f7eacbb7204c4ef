-- The jobs that an acquire took and that are still held under it, in the order in which they are to be run.
-- ?1: request
select
  first.key, first.chain_trace, first.created_at as chain_created_at, first.retain_completed, first.retain_failed,
  first.retain_cancelled,
  job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.input_codec, job.input,
  job.output_codec, job.output, job.error, job.priority, job.due_at, job.attempt, job.max_attempts, job.fence,
  job.version, job.worker, job.request, job.lease_until, job.cancel_requested, job.on_blocker_failure,
  job.created_at, job.started_at, job.closed_at, job.closed_by, job.trace,
  (
    select json_group_array(json_array(hex(chain), resolved, trace) order by position)
    from {prefix}blocker where {prefix}blocker.job = job.seq
  ) as blockers
from {prefix}job as job
join {prefix}job as first on first.id = job.chain
where job.status = 'running' and job.request = ?1
order by job.priority desc, job.due_at, job.seq
