-- The running jobs that a request leased, in the order in which they should run.
-- ?1: request
select id from {prefix}job where request = ?1 and status = 'running' order by priority desc, due_at, seq
