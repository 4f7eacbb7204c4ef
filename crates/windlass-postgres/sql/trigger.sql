select * from windlass.trigger_v1(windlass.own_v1($1), $2, $3, $4, $5)
