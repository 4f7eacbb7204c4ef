-- Jobs of one chain in order of creation.
-- Every row has the end of the page and whether more rows follow. An empty page is one row without a job.
-- Rows are scanned in order, so the scan ends when the page is full.
-- ?1: newest first; ?2: cursor; ?3: maximum rows to scan; ?4: maximum rows to return; ?5: [type, ...] or null;
-- ?6: [status, ...] or null; ?7: [chain type, ...] or null; ?8: created from; ?9: created to; ?10: the chain
with
  looked_at as not materialized (
    select * from (
      select position as place, seq, type, status, chain_type, created_at from {prefix}job
      where ?1 and chain = ?10 and position < coalesce(?2, 9223372036854775807)
      order by position desc
      limit +?3
    )
    union all
    select * from (
      select position as place, seq, type, status, chain_type, created_at from {prefix}job
      where not ?1 and chain = ?10 and position > coalesce(?2, -1)
      order by position
      limit +?3
    )
  ),
  passed as materialized (
    select place, seq from looked_at
    where (?5 is null or type in (select value from json_each(?5)))
      and (?6 is null or status in (select value from json_each(?6)))
      and (?7 is null or chain_type in (select value from json_each(?7)))
      and created_at >= coalesce(?8, created_at)
      and created_at <= coalesce(?9, created_at)
    limit +?4
  ),
  {page}
select
  page.last,
  iif(
    ?1,
    exists (select 1 from {prefix}job where chain = ?10 and position < page.last),
    exists (select 1 from {prefix}job where chain = ?10 and position > page.last)
  ) as more,
  {record}
from page
left join passed on true
left join {prefix}job as job on job.seq = passed.seq
order by iif(?1, -job.seq, job.seq)
