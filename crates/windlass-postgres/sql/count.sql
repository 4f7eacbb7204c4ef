select * from windlass.count_v1($1, $2)
