-- The trace contexts of these jobs' waits, in the order of their blockers.
-- ?1: [seq, ...]
select blocker.job, blocker.trace
from json_each(?1) as asked
join {prefix}blocker as blocker on blocker.job = asked.value
order by blocker.job, blocker.position
