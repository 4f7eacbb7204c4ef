-- The open chain whose oldest inner job may be deleted first.
-- ?1: now
select id from {prefix}job
where trim_at is not null and chain_closed_at is null and trim_at <= +?1
order by trim_at, id limit 1
