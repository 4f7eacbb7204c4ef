insert into {prefix}schedule (name, id, revision, due_at, handled, definition, state)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (name) do update set
  id = excluded.id, revision = excluded.revision, due_at = excluded.due_at, handled = excluded.handled,
  definition = excluded.definition, state = excluded.state
