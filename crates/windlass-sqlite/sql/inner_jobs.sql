-- The jobs of a closed chain between its first and its latest, oldest first.
-- ?1: chain; ?2: maximum number of jobs
select job.seq
from {prefix}job as first
join {prefix}job as job on job.chain = first.id and job.position > 0 and job.position < first.latest_position
where first.id = ?1
order by job.position
limit +?2
