-- The chains that these jobs wait or waited for, in the order in which they were declared.
-- ?1: [seq, ...]
select blocker.job, blocker.chain, blocker.resolved
from json_each(?1) as asked
join {prefix}blocker as blocker on blocker.job = asked.value
order by blocker.job, blocker.position
