-- The parts of a union run in order: the attempts are settled before the next jobs are acquired.
select r.*, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from windlass.settle_v1(
  windlass.own_v1($1), windlass.settlements_v1($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13),
  windlass.new_jobs_v1($14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34)
) r
union all
select * from windlass.acquire_v1($1, $35, $36, $37, $38, $39, $40, $41::bigint::integer, $42, $43, $44, true, $45::bigint = 1)
