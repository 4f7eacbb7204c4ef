-- Jobs in order of creation.
-- ?1 and ?2: first and last seq
select seq, seq, type, status, chain_type, created_at, closed_at from {prefix}job
where seq between +?1 and +?2 order by seq
