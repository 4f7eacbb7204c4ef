select * from windlass.retry_v1(windlass.own_v1($1), $2, $3)
