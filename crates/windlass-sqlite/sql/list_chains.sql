-- Jobs in order of creation, each chain with its first job. Other jobs have no status here.
-- ?1 and ?2: first and last seq
select first.seq, first.id, first.type, latest.status, first.created_at,
  exists (select 1 from {prefix}blocker where chain = first.id), first.chain_closed_at, first.key
from {prefix}job as first left join {prefix}job as latest on latest.id = first.latest
where first.seq between +?1 and +?2 order by first.seq
