with clock as materialized (
  select windlass.time_v1($1) as now
), due as materialized (
  select s.name, s.id, s.revision, s.due_at, s.handled, s.definition, s.state
  from windlass.schedule s
  where s.due_at <= (select c.now from clock c)
  order by s.due_at, s.name
  offset $2 limit $3
), next as (
  -- The schedule after these, due or not.
  select s.due_at
  from windlass.schedule s
  where s.due_at is not null
  order by s.due_at, s.name
  offset $2 + (select count(*) from due) limit 1
)
select 'now', null::integer, null::uuid[], null::text[], array[(select c.now from clock c), (select n.due_at from next n)], null::bytea[]
union all (
  select 'schedule', null::integer, array[d.id, d.revision], array[d.name, d.definition, d.state], array[d.due_at, d.handled], null::bytea[]
  from due d
  order by d.due_at, d.name
)
