-- The parts of a union run in order: the jobs are settled before the next ones are acquired.
select r.*, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from windlass.settle_plain_v1(windlass.own_v1($1), $2, $3, $4, $5, $6) r
union all
select * from windlass.acquire_v1($1, $7, $8, $9, $10, $11, $12, $13::bigint::integer, $14, $15, $16, true, $17::bigint = 1)
