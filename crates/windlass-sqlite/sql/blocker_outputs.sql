-- The outputs of the blockers of these jobs, in the order in which they were declared.
-- ?1: [seq, ...]
select
  blocker.job, blocker.chain, first.type as chain_type, latest.type, latest.status, latest.output_codec,
  latest.output, latest.error
from json_each(?1) as asked
join {prefix}blocker as blocker on blocker.job = asked.value
join {prefix}job as first on first.id = blocker.chain
join {prefix}job as latest on latest.id = first.latest
order by blocker.job, blocker.position
