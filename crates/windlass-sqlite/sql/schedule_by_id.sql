-- A schedule by its id.
-- ?1: id
select name, id, revision, due_at, handled, definition, state from {prefix}schedule where id = ?1
