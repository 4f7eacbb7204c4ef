-- The chains that are meant, each with its first and its latest job: one row where they are the same.
-- ?1: [[kind, id or null, type or null, key or null], ...]
with
  asked as (
    select
      key as item, value ->> 0 as kind, unhex(value ->> 1) as id, value ->> 2 as type, value ->> 3 as key
    from json_each(?1)
  ),
  found as (
    select asked.item, job.id, 0 as by_key
    from asked join {prefix}job as job on job.id = asked.id
    where asked.kind = 'chain' and job.position = 0
    union all
    select asked.item, job.chain, 0
    from asked join {prefix}job as job on job.id = asked.id
    where asked.kind = 'job'
    union all
    select asked.item, holder.id, 1
    from asked
    join {prefix}job as holder
      on holder.type = asked.type and holder.key = asked.key and holder.key_held = 1
    where asked.kind = 'key'
  )
select
  found.item, found.by_key,
  first.seq as chain_seq, first.id as chain_id, first.latest_position, first.key, first.key_hold, first.key_window,
  first.key_held, first.retain_completed, first.retain_failed, first.retain_cancelled,
  first.created_at as chain_created_at, first.chain_closed_at, first.chain_closed_as, first.retain_until,
  first.trim_at, first.rippling, first.chain_trace,
  job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.input_codec, job.input,
  job.output_codec, job.output, job.error, job.priority, job.due_at, job.attempt, job.max_attempts, job.fence,
  job.version, job.worker, job.request, job.lease_until, job.cancel_requested, job.on_blocker_failure,
  job.created_at, job.started_at, job.closed_at, job.closed_by, job.trace,
  (
    select json_group_array(json_array(hex(chain), resolved, trace) order by position)
    from {prefix}blocker where {prefix}blocker.job = job.seq
  ) as blockers
from found
join {prefix}job as first on first.id = found.id
join {prefix}job as job on job.id in (first.id, first.latest)
order by found.item, job.position
