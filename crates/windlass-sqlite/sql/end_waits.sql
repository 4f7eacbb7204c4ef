-- ?1: [seq, ...]: jobs that closed while they were blocked
update {prefix}blocker
set waiting = 0
where job in (select value from json_each(?1)) and waiting = 1
