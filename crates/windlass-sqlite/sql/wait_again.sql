-- ?1: [seq, ...]: jobs that are blocked again
update {prefix}blocker
set waiting = 1
where job in (select value from json_each(?1)) and resolved = 0
