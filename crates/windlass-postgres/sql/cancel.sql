select * from windlass.cancel_v1(windlass.own_v1($1), $2, $3, $4, $5, $6)
