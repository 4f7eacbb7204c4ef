select * from windlass.pause_v1($1, $2)
