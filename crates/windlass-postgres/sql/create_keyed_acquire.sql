-- The parts of a union run in order: the chains are created before jobs are acquired.
select r.*, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from windlass.create_keyed_v1(windlass.own_v1($1), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) r
union all
select * from windlass.acquire_v1($1, $20, $21, $22, $23, $24, $25, $26::bigint::integer, $27, $28, $29, true, $30::bigint = 1)
