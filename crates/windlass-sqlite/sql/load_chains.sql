-- The chains that these ids belong to and that these keys point at, each with its latest job. The output comes along
-- for keys only: nobody else wants it.
-- ?1: [id, ...] of chains or jobs; ?2: [[type, key], ...]
with
  asked as (
    select unhex(value) as id from json_each(?1)
  ),
  pointed_at as (
    select value ->> 0 as type, value ->> 1 as key from json_each(?2)
  ),
  found as (
    select job.id as asked, job.chain
    from asked
    join {prefix}job as job on job.id = asked.id
    union all
    select null, holder.id
    from pointed_at
    join {prefix}job as holder
      on holder.type = pointed_at.type and holder.key = pointed_at.key and holder.key_held = 1
  )
select
  found.asked,
  first.seq as chain_seq, first.id as chain_id, first.latest_position, first.key, first.key_hold, first.key_window,
  first.key_held, first.retain_completed, first.retain_failed, first.retain_cancelled,
  first.created_at as chain_created_at, first.chain_closed_at, first.chain_closed_as, first.retain_until,
  first.trim_at, first.rippling, first.chain_trace,
  job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.due_at, job.attempt,
  job.max_attempts, job.fence, job.version, job.worker, job.lease_until, job.cancel_requested, job.waits,
  job.blockers, job.on_blocker_failure, job.started_at, job.error,
  case when found.asked is null then job.output_codec end as output_codec,
  case when found.asked is null then job.output end as output
from found
join {prefix}job as first on first.id = found.chain
join {prefix}job as job on job.id = first.latest
