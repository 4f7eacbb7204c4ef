-- The last number in the order of creation, and the largest fence of a deleted job.
select last, deleted_fence from {prefix}sequence
