-- The closed chain that may be deleted first.
-- ?1: now
select id from {prefix}job
where leaves_at is not null and needed_by = 0 and leaves_at <= +?1
order by leaves_at, seq limit 1
