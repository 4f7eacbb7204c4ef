-- ?1: [job, ...]
select
  asked.key as item,
  {record}
from json_each(?1) as asked
join {prefix}job as job on job.id = unhex(asked.value)
