json_array(
  job.seq, hex(job.id), hex(job.chain), job.position, job.type, job.chain_type, job.status, job.due_at, job.attempt,
  job.max_attempts, job.fence, job.version, hex(job.worker), job.lease_until, job.cancel_requested, job.waits,
  job.blockers, job.on_blocker_failure, job.started_at, job.error
) as job
