-- Chains in order of creation, each with its first and its latest job: one row if they are the same.
-- Every row has the end of the page and whether more rows follow. An empty page is one row without a job.
-- Rows are scanned in order, so the scan ends when the page is full.
-- ?1: newest first; ?2: cursor; ?3: maximum rows to scan; ?4: maximum rows to return; ?5: [type, ...] or null;
-- ?6: [status, ...] or null; ?7: only those that no job waits or waited for; ?8: created from; ?9: created to
with
  looked_at as not materialized (
    select * from (
      select seq as place, id, latest, type, created_at from {prefix}job
      where ?1 and position = 0 and seq < coalesce(?2, 9223372036854775807)
      order by seq desc
      limit +?3
    )
    union all
    select * from (
      select seq as place, id, latest, type, created_at from {prefix}job
      where not ?1 and position = 0 and seq > coalesce(?2, -1)
      order by seq
      limit +?3
    )
  ),
  passed as materialized (
    select looked_at.place
    from looked_at
    cross join {prefix}job as latest on latest.id = looked_at.latest
    where (?5 is null or looked_at.type in (select value from json_each(?5)))
      and (?6 is null or latest.status in (select value from json_each(?6)))
      and (not ?7 or not exists (select 1 from {prefix}blocker where chain = looked_at.id))
      and looked_at.created_at >= coalesce(?8, looked_at.created_at)
      and looked_at.created_at <= coalesce(?9, looked_at.created_at)
    limit +?4
  ),
  {page}
select
  page.last,
  iif(
    ?1,
    exists (select 1 from {prefix}job where position = 0 and seq < page.last),
    exists (select 1 from {prefix}job where position = 0 and seq > page.last)
  ) as more,
  {chain},
  {record}
from page
left join passed on true
left join {prefix}job as first on first.seq = passed.place
left join {prefix}job as job on job.id in (first.id, first.latest)
order by iif(?1, -first.seq, first.seq), job.position
