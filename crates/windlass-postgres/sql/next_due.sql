select * from windlass.next_due_v1($1, $2, $3, $4, $5)
