-- ?1: the last number in the order of creation
update {prefix}sequence set last = ?1
