-- Schedules by due time.
-- ?1: number of schedules to skip; ?2: number of schedules
select name, id, revision, due_at, handled, definition, state from {prefix}schedule where due_at is not null
order by due_at, name limit +?2 offset +?1
