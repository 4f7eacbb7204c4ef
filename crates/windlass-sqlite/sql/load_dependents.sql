-- The jobs that are affected when these chains close, and those of chains that an earlier command deferred. If a job
-- would fail with its blocker, also the jobs that are affected when its chain closes, recursively. Rows are in the
-- order in which they must be resolved. Each step of the recursion goes from one dependent to the next through an
-- index, so the work is bounded by the limit, not by the number of dependents. A row without a job means that the
-- chain has no more dependents.
-- ?1: [[chain, whether it completes], ...]; ?2: now; ?3: maximum number of deferred chains; ?4: maximum number of
-- dependents
with recursive
  closing (at, chain_seq, chain, completed) as (
    select ?2, first.seq, first.id, value ->> 1
    from json_each(?1)
    join {prefix}job as first on first.id = unhex(value ->> 0)
    union all
    select * from (
      select chain_closed_at, seq, id, chain_closed_as = 'completed'
      from {prefix}job
      where rippling = 1
      order by chain_closed_at, seq
      limit +?3
    )
  ),
  dependent (at, chain_seq, chain, completed, job) as (
    select
      closing.at,
      closing.chain_seq,
      closing.chain,
      closing.completed,
      iif(
        closing.completed,
        (select min(job) from {prefix}blocker where chain = closing.chain and waiting = 1),
        (select min(job) from {prefix}blocker where chain = closing.chain and waiting = 1 and eager = 1)
      )
    from closing
    union
    select
      dependent.at,
      dependent.chain_seq,
      dependent.chain,
      dependent.completed,
      iif(
        dependent.completed,
        (
          select min(job) from {prefix}blocker
          where chain = dependent.chain and waiting = 1 and job > dependent.job
        ),
        (
          select min(job) from {prefix}blocker
          where chain = dependent.chain and waiting = 1 and eager = 1 and job > dependent.job
        )
      )
    from dependent
    where dependent.job is not null
    union
    select
      ?2,
      first.seq,
      first.id,
      0,
      (select min(job) from {prefix}blocker where chain = first.id and waiting = 1 and eager = 1)
    from dependent
    join {prefix}job as job on job.seq = dependent.job
    join {prefix}job as first on first.id = job.chain
    where not dependent.completed and job.on_blocker_failure = 'fail'
    order by 1, 2, 5
    limit +?4
  )
select
  dependent.chain as awaited, dependent.completed, dependent.job as seq,
  {job}
from dependent
left join {prefix}job as job on job.seq = dependent.job
