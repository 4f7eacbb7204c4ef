job.seq,
json_array(
  hex(job.id), hex(job.chain), job.position, job.type, job.chain_type, job.status, job.input_codec, job.output_codec,
  job.error, job.priority, job.due_at, job.attempt, job.max_attempts, job.fence, job.version, hex(job.worker),
  hex(job.request), job.lease_until, job.cancel_requested, job.on_blocker_failure, job.created_at, job.started_at,
  job.closed_at, hex(job.closed_by), job.trace
) as record,
job.input,
job.output,
iif(
  job.blockers = 0,
  '[]',
  (
    select json_group_array(json_array(hex(chain), resolved, trace) order by position)
    from {prefix}blocker where {prefix}blocker.job = job.seq
  )
) as blockers
