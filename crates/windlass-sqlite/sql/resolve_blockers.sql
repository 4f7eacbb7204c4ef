-- ?1: [[seq, chain], ...]: the job no longer waits for the chain
with
  resolved as (
    select value ->> 0 as job, unhex(value ->> 1) as chain from json_each(?1)
  )
update {prefix}blocker as blocker
set resolved = 1, waiting = 0
from resolved
where blocker.job = resolved.job and blocker.chain = resolved.chain
