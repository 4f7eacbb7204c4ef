-- Schedules that are due, by due time.
-- ?1: number of schedules to skip; ?2: number of schedules; ?3: the time
select name, id, revision, due_at, handled, definition, state from {prefix}schedule
where due_at is not null and due_at <= +?3
order by due_at, name limit +?2 offset +?1
