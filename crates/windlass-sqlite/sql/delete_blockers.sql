-- ?1: seq of the job
delete from {prefix}blocker where job = ?1
