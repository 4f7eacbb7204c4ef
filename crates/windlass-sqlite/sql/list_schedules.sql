-- Schedules after a name.
-- ?1: name; ?2: number of schedules
select name, id, revision, due_at, handled, definition, state from {prefix}schedule where name > +?1 order by name limit +?2
