-- Jobs of a chain by position, newest first.
-- ?1 and ?2: first and last position, counted from 1; ?3: chain
select * from (
  select position + 1, seq, type, status, chain_type, created_at, closed_at from {prefix}job
  where chain = ?3 and position > 0 and position between +?1 - 1 and +?2 - 1
  order by position desc
)
union all
select 1 as place, seq, type, status, chain_type, created_at, closed_at from {prefix}job where id = ?3 and position = 0 and ?1 <= 1 and ?2 >= 1
