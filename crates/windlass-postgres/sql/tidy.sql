select * from windlass.tidy_v1(windlass.own_v1($1), $2, $3::bigint::integer)
