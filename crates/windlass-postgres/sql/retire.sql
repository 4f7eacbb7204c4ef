select * from windlass.retire_v1(windlass.own_v1($1), $2)
