-- How many jobs more or less need a chain.
-- ?1: chain; ?2: change
update {prefix}job set needed_by = needed_by + ?2 where id = ?1
