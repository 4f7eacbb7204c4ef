-- The types that have pending jobs.
select type from {prefix}tally where status = 'pending' and jobs > 0
