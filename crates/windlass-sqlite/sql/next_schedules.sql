-- The schedule that is due first, the last one that is due, and the next one that is not due yet. If no worker can read the
-- first one, it stays the first.
-- ?1: the time
select due_at, revision from (
  select due_at, revision from {prefix}schedule where due_at is not null order by due_at, name limit 1
)
union all
select due_at, revision from (
  select due_at, revision from {prefix}schedule where due_at is not null and due_at <= +?1
  order by due_at desc, name desc limit 1
)
union all
select due_at, revision from (
  select due_at, revision from {prefix}schedule where due_at is not null and due_at > +?1 order by due_at, name limit 1
)
