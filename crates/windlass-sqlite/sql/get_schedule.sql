-- A schedule.
-- ?1: name
select name, id, revision, due_at, handled, definition, state from {prefix}schedule where name = ?1
