-- ?1: the last number in the order of creation, ?2: the largest fence of a deleted job
update {prefix}sequence set last = ?1, deleted_fence = ?2
