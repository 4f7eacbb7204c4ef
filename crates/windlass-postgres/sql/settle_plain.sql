select * from windlass.settle_plain_v1(windlass.own_v1($1), $2, $3, $4, $5, $6)
