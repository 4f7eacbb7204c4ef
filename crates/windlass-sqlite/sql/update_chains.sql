-- ?1: chains in their current state
with
  {items},
  changed as materialized (
    select
      value ->> 'seq' as seq,
      {chain_fields}
    from item
  )
update {prefix}job as job
set
  {set_chain}
from changed
where job.seq = changed.seq
