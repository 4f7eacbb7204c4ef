-- A job by its number in the order of creation.
-- ?1: seq
select {columns}, needed_by from {prefix}job where seq = ?1
