-- The pending job of a type and priority with the earliest due time.
-- ?1: type; ?2: priority
select due_at, seq from {prefix}job
where status = 'pending' and type = ?1 and priority = ?2
order by due_at, seq limit 1
