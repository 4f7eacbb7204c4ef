-- How many jobs have each type and status, and how many had it when they ended, but no longer.
select type, status, jobs, former from {prefix}tally where jobs > 0 or former > 0
union all
select type, 'paused', 1, 0 from {prefix}paused
order by type
