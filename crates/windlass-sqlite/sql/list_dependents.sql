-- Jobs that wait or waited for a chain, in order of creation.
-- ?1 and ?2: first and last seq; ?3: chain
select distinct job from {prefix}blocker where chain = ?3 and job between +?1 and +?2 order by job
