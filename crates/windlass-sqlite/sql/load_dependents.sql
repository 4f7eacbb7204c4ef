-- The jobs that the end of these chains concerns, and of the chains that an earlier command left off at; and if a job
-- would fail with its blocker, those that its chain's end concerns, and so on. They come in the order in which they are
-- to be resolved. Each step of the recursion goes from one dependent to the next by an index, so that the work is bounded
-- by the limit and not by the number of dependents. A row without a job says that the chain has no more of them.
-- ?1: [[chain, whether it completes], ...]; ?2: now; ?3: the most chains left off at; ?4: the most dependents
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
