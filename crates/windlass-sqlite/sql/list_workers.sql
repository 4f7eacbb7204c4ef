-- Registered workers.
-- ?1: now
select id, name, types, concurrency, running, started_at, seen_at, expires_at
from {prefix}worker
where expires_at > +?1
order by id
