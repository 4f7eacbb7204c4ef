-- The highest priority below a given one at which a type has pending jobs.
-- ?1: type; ?2: priority
select priority from {prefix}job
where status = 'pending' and type = ?1 and priority < +?2
order by priority desc limit 1
