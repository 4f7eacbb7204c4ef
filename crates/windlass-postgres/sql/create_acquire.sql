-- The parts of a union run in order: the chains are created before jobs are acquired.
select r.*, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from windlass.create_v1(windlass.own_v1($1), windlass.new_jobs_v1($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)) r
union all
select * from windlass.acquire_v1($1, $23, $24, $25, $26, $27, $28, $29::bigint::integer, $30, $31, $32, true, $33::bigint = 1)
