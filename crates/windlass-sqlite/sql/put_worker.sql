insert into {prefix}worker (id, name, types, concurrency, running, started_at, seen_at, expires_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict do update set
  name = excluded.name, types = excluded.types, concurrency = excluded.concurrency, running = excluded.running,
  started_at = excluded.started_at, seen_at = excluded.seen_at, expires_at = excluded.expires_at
