-- ?1: worker; ?2: name; ?3: types; ?4: concurrency; ?5: running; ?6: now; ?7: expires at
insert into {prefix}worker (id, name, types, concurrency, running, started_at, seen_at, expires_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)
on conflict (id) do update
set
  name = excluded.name,
  types = excluded.types,
  concurrency = excluded.concurrency,
  running = excluded.running,
  seen_at = excluded.seen_at,
  expires_at = excluded.expires_at
