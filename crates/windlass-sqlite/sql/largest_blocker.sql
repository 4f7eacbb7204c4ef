-- The largest chain that any job waits or waited for.
select chain from {prefix}blocker order by chain desc limit 1
