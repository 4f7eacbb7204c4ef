select 'now', null::integer, null::uuid[], null::text[], array[windlass.time_v1($1)], null::bytea[]
union all (
  select 'schedule', null::integer, array[s.id, s.revision], array[s.name, s.definition, s.state], array[s.due_at, s.handled], null::bytea[]
  from windlass.schedule s
  where s.due_at is not null
  order by s.due_at, s.name
  offset $2 limit $3
)
