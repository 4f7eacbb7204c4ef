-- The parts of a union run in order: the chains are created before jobs are acquired.
select r.*, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from windlass.create_plain_v1(windlass.own_v1($1), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) r
union all
select * from windlass.acquire_v1($1, $16, $17, $18, $19, $20, $21, $22::bigint::integer, $23, $24, $25, true, $26::bigint = 1)
