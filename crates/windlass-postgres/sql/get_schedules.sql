select 'now', null::integer, null::uuid[], null::text[], array[windlass.time_v1($1)], null::bytea[]
union all
select 'schedule', w.n::integer, s.ids, s.words, s.numbers, s.bytes
from unnest($2::text[], $3::uuid[]) with ordinality w (name, id, n)
cross join lateral (
  select array[s.id, s.revision], array[s.name, s.definition, s.state], array[s.due_at, s.handled], null::bytea[]
  from windlass.schedule s where s.name = w.name
  union all
  select array[s.id, s.revision], array[s.name, s.definition, s.state], array[s.due_at, s.handled], null::bytea[]
  from windlass.schedule s where s.id = w.id
) s (ids, words, numbers, bytes)
