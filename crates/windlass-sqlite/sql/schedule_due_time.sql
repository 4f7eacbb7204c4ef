-- The due time of the next schedule.
-- ?1: number of schedules to skip
select due_at from {prefix}schedule where due_at is not null order by due_at, name limit 1 offset +?1
