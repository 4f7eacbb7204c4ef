-- The closed chains that may leave, first those that nobody needs; then those that are needed only by failed jobs of
-- chains in the list, and so would be free to leave with them.
-- ?1: now; ?2: the most chains that nobody needs; ?3: the most chains in all
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
