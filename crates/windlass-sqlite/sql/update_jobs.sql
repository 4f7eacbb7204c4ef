-- ?1: jobs as they stand now; ?2: their outputs, one behind the other
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
