select * from windlass.exchange_plain_v1(windlass.own_v1($1), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::bigint::integer, $14, $15, $16)
