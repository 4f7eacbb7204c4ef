-- Blockers and attempts go with their jobs.
delete from {prefix}job
