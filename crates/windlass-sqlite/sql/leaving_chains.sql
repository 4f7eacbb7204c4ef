-- The closed chains to remove: first those that no job needs, then those that only failed jobs of chains in this list
-- need, which become removable with them.
-- ?1: now; ?2: maximum number of chains that no job needs; ?3: maximum number of chains in total
with recursive
  leaving (id) as (
    select * from (
      select id from {prefix}job
      where leaves_at <= +?1 and needed_by = 0
      order by leaves_at, seq
      limit +?2
    )
    union
    select needed.id
    from leaving
    join {prefix}job as first on first.id = leaving.id
    join {prefix}job as latest on latest.id = first.latest and latest.status = 'failed'
    join {prefix}blocker as blocker on blocker.job = latest.seq
    join {prefix}job as needed on needed.id = blocker.chain and needed.leaves_at <= +?1
    limit +?3
  )
select
  first.seq, first.id, first.type, first.chain_closed_as, first.leaves_at, first.needed_by,
  (select count(*) from (select 1 from {prefix}job where chain = first.id limit +?2)) as jobs,
  (
    select json_group_array(hex(blocker.chain))
    from {prefix}job as latest
    join {prefix}blocker as blocker on blocker.job = latest.seq
    where latest.id = first.latest and latest.status = 'failed'
  ) as needs
from leaving
join {prefix}job as first on first.id = leaving.id
