-- A job by its id.
-- ?1: id
select {columns}, needed_by from {prefix}job where id = ?1
