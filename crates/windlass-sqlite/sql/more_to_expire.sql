-- ?1: now
select
  exists (select 1 from {prefix}job where leaves_at <= +?1 and needed_by = 0)
  or exists (select 1 from {prefix}job where trim_at <= +?1 and chain_closed_at is null)
  as more
