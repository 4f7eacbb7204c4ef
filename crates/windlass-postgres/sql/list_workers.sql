select
  'worker', null::integer, array[w.id], w.name || w.types,
  array[w.concurrency, w.running, w.started_at, w.seen_at, w.expires_at], null::bytea[]
from windlass.worker w
where w.expires_at > windlass.time_v1($1)
order by w.id
