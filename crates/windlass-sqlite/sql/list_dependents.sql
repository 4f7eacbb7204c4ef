-- Jobs that wait or waited for a chain, in order of creation.
-- Every row has the end of the page and whether more rows follow. An empty page is one row without a job.
-- Rows are scanned in order, so the scan ends when the page is full.
-- ?1: newest first; ?2: cursor; ?3: maximum rows to scan; ?4: maximum rows to return; ?5: the chain
with
  looked_at as not materialized (
    select * from (
      select distinct job as place from {prefix}blocker
      where ?1 and chain = ?5 and job < coalesce(?2, 9223372036854775807)
      order by job desc
      limit +?3
    )
    union all
    select * from (
      select distinct job as place from {prefix}blocker
      where not ?1 and chain = ?5 and job > coalesce(?2, -1)
      order by job
      limit +?3
    )
  ),
  passed as materialized (
    select place, place as seq from looked_at limit +?4
  ),
  {page}
select
  page.last,
  iif(
    ?1,
    exists (select 1 from {prefix}blocker where chain = ?5 and job < page.last),
    exists (select 1 from {prefix}blocker where chain = ?5 and job > page.last)
  ) as more,
  {record}
from page
left join passed on true
left join {prefix}job as job on job.seq = passed.seq
order by iif(?1, -job.seq, job.seq)
