-- Which of these chains are closed.
-- ?1: [chain, ...]
select first.id
from json_each(?1)
join {prefix}job as first on first.id = unhex(value)
where first.chain_closed_at is not null
