-- ?1: jobs in their current state; ?2: their outputs, concatenated
with
  {items},
  changed as materialized (
    select
      value ->> 'seq' as seq,
      {job_fields}
    from item
  )
update {prefix}job as job
set
  {set_job}
from changed
where job.seq = changed.seq
