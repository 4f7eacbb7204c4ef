-- Some that are long gone.
-- ?1: now; ?2: the most
delete from {prefix}worker
where id in (select id from {prefix}worker where gone_at <= +?1 order by gone_at, id limit +?2)
