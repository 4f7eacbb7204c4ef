-- The jobs of a chain at these positions. The first job has the chain's id.
-- ?1: chain; ?2: first position; ?3: last position; ?4: maximum
select id, position from {prefix}job where id = ?1 and position = 0 and ?2 = 0
union all
select * from (
  select id, position from {prefix}job
  where chain = ?1 and position > 0 and position between +?2 and +?3
  order by position limit +?4
)
limit +?4
