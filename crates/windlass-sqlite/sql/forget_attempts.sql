-- Keeps only the latest attempts of each job.
-- ?1: as for insert_attempts; ?2: number to keep
delete from {prefix}attempt
where (job, fence) in (
  select attempt.job, attempt.fence
  from json_each(?1)
  join {prefix}attempt as attempt
    on attempt.job = value ->> 'job' and attempt.fence <= (value ->> 'fence') - ?2
)
