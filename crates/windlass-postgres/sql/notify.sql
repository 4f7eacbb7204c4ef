select 'notified', null::integer, null::uuid[], array[pg_notify($1, p.payload)::text], null::bigint[], null::bytea[]
from unnest($2::text[]) p (payload)
