select * from windlass.create_v1(windlass.own_v1($1), windlass.new_jobs_v1($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22))
