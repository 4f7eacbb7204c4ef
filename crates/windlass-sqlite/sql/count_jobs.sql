-- How many jobs have each type and status.
select type, status, jobs from {prefix}tally where jobs > 0
union all
select type, 'paused', 1 from {prefix}paused
order by type
