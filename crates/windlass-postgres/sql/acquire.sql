select * from windlass.acquire_v1(windlass.own_v1($1), $2, $3, $4, $5, $6, $7, $8::bigint::integer, $9, $10, $11, false, $12::bigint = 1)
