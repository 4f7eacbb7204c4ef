-- ?1: now
select id, name, types, concurrency, running, started_at, seen_at, gone_at
from {prefix}worker
where gone_at > +?1
order by id
