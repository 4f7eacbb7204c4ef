-- The schedule that is due first.
select due_at, revision from {prefix}schedule where due_at is not null order by due_at, name limit 1
