select * from windlass.pause_v1(windlass.own_v1($1), $2, $3)
