select * from windlass.expire_v1(windlass.own_v1($1), $2::bigint::integer)
