select * from windlass.retry_v1($1, $2, $3)
