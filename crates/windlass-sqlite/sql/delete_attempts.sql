-- ?1: seq of the job
delete from {prefix}attempt where job = ?1
