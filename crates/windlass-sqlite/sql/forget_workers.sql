-- Removes some expired workers.
-- ?1: now; ?2: maximum number
delete from {prefix}worker
where id in (select id from {prefix}worker where expires_at <= +?1 order by expires_at, id limit +?2)
