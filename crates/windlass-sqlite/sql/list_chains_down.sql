-- Chains in order of creation, newest first.
-- ?1 and ?2: first and last seq
select first.seq, first.id, first.type, latest.status, first.created_at,
  exists (select 1 from {prefix}blocker where chain = first.id)
from {prefix}job as first cross join {prefix}job as latest on latest.id = first.latest
where first.position = 0 and first.seq between +?1 and +?2 order by first.seq desc
