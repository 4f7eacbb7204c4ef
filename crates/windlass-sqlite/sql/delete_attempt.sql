-- ?1: seq of the job; ?2: fence
delete from {prefix}attempt where job = ?1 and fence = ?2
