-- The first due jobs of a type and priority.
-- ?1: type; ?2: priority; ?3: now; ?4: maximum
select due_at, seq from {prefix}job
where status = 'pending' and type = ?1 and priority = ?2 and due_at <= +?3
order by due_at, seq limit +?4
