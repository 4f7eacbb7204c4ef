-- A registered worker.
-- ?1: id
select id, name, types, concurrency, running, started_at, seen_at, expires_at from {prefix}worker where id = ?1
