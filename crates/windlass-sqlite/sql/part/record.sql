job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.input_codec, job.input,
job.output_codec, job.output, job.error, job.priority, job.due_at, job.attempt, job.max_attempts, job.fence,
job.version, job.worker, job.request, job.lease_until, job.cancel_requested, job.on_blocker_failure,
job.created_at, job.started_at, job.closed_at, job.closed_by, job.trace,
iif(
  job.blockers = 0,
  '[]',
  (
    select json_group_array(json_array(hex(chain), resolved, trace) order by position)
    from {prefix}blocker where {prefix}blocker.job = job.seq
  )
) as blockers
