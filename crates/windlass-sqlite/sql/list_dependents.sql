-- Jobs that wait or waited for a chain, in their order of creation.
-- Every row says where the page ends and whether there is more behind it; if it is empty there is one without a job.
-- ?1: newest first; ?2: behind this place; ?3: the most to look at; ?4: the most to give; ?5: the chain
with
  looked_at as materialized (
    select * from (
      select distinct job as place from {prefix}blocker
      where ?1 and chain = ?5 and job < coalesce(?2, 9223372036854775807)
      order by job desc
      limit ?3
    )
    union all
    select * from (
      select distinct job as place from {prefix}blocker
      where not ?1 and chain = ?5 and job > coalesce(?2, -1)
      order by job
      limit ?3
    )
  ),
  passed as materialized (
    select place, place as seq from looked_at order by iif(?1, -place, place) limit ?4
  ),
  page as (
    select
      iif(
        (select count(*) from passed) = ?4,
        (select iif(?1, min(place), max(place)) from passed),
        (select iif(?1, min(place), max(place)) from looked_at)
      ) as last
  )
select
  page.last,
  iif(
    ?1,
    exists (select 1 from {prefix}blocker where chain = ?5 and job < page.last),
    exists (select 1 from {prefix}blocker where chain = ?5 and job > page.last)
  ) as more,
  job.seq, job.id, job.chain, job.position, job.type, job.chain_type, job.status, job.input_codec, job.input,
  job.output_codec, job.output, job.error, job.priority, job.due_at, job.attempt, job.max_attempts, job.fence,
  job.version, job.worker, job.request, job.lease_until, job.cancel_requested, job.on_blocker_failure,
  job.created_at, job.started_at, job.closed_at, job.closed_by, job.trace,
  (
    select json_group_array(json_array(hex(chain), resolved, trace) order by position)
    from {prefix}blocker where {prefix}blocker.job = job.seq
  ) as blockers
from page
left join passed on true
left join {prefix}job as job on job.seq = passed.seq
order by iif(?1, -job.seq, job.seq)
