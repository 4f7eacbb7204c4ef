-- First jobs that are still the latest, each with its chain: one row holds both.
-- ?1: jobs and chains in their current state; ?2: outputs, concatenated
with
  {items},
  changed as materialized (
    select
      value ->> 'seq' as seq,
      {job_fields},
      {chain_fields}
    from item
  )
update {prefix}job as job
set
  {set_job},
  {set_chain}
from changed
where job.seq = changed.seq
