-- The largest id of a job.
select id from {prefix}job order by id desc limit 1
