select * from windlass.leader_lock_v1(windlass.own_v1($1), $2, $3, $4)
