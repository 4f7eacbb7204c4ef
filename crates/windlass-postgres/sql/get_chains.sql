select * from windlass.get_chains_v1($1, $2, $3, $4, $5)
