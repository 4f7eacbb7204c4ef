select * from windlass.delete_v1(windlass.own_v1($1), $2, $3, $4, $5, $6, $7, $8, $9)
