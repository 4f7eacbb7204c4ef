select 'job', a.n::integer, null::uuid[], null::text[], null::bigint[], null::bytea[], j.*
from pg_catalog.unnest($1::uuid[]) with ordinality a (id, n)
join windlass.job_reply_v1 j on j.id = a.id
