select * from windlass.reap_v1(windlass.own_v1($1), $2, $3::bigint::integer, $4)
